"""A plain Keras script that `test_survival.py` runs, with things that go wrong on one worker in one start.

survivor.py FOLDER [KIND RANK GENERATION]...
"""

import json
import os
import pathlib
import signal
import sys
import threading
import time

EPOCHS = 3


def at_batch(epoch, batch, function):
    """A callback that calls a function before one batch of one epoch."""
    import keras

    class AtBatch(keras.callbacks.Callback):
        epoch = None

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_begin(self, number, logs=None):
            if (self.epoch, number) == (epoch, batch):
                function()

    return AtBatch()


def loop():
    while True:
        pass


def await_sigterm(folder):
    """Tells whoever looks into the folder that it is time, and goes on when the signal is here, with one more."""
    from trireme.backends.fitting import current_fit

    (folder / "ready").touch()
    while not current_fit().backup._preemption._is_wished:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    (folder / "heard").touch()


def pipeline(x, y, is_blocked):
    """The rows as a pipeline, or one that has no sixth batch, as if its threads waited for each other."""
    import tensorflow as tf

    def rows():
        for start in range(0, len(x), 10):
            if is_blocked and start == 50:
                threading.Event().wait()
            yield x[start : start + 10], y[start : start + 10]

    specs = (tf.TensorSpec((None, 5), "float32"), tf.TensorSpec((None,), "float32"))
    batches = tf.data.Dataset.from_generator(rows, output_signature=specs)
    return batches.apply(tf.data.experimental.assert_cardinality(7))


def train(folder=None, wrongs=()):
    """Returns the weights and the history.

    Args:
        folder: where to say that it is time for SIGTERM.
        wrongs: what goes wrong in this process: "loop", "blocked input", "sigterm".
    """
    import keras
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 5)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("float32")
    model = keras.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Dense(6, activation="relu"),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
    callbacks = [keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=0.2)]
    if "loop" in wrongs:
        callbacks.append(at_batch(0, 5, loop))
    if "sigterm" in wrongs:
        callbacks.append(at_batch(1, 1, lambda: await_sigterm(folder)))
    data = {"x": x, "y": y, "batch_size": 10}
    if keras.backend.backend() == "tensorflow":
        data = {"x": pipeline(x, y, "blocked input" in wrongs), "shuffle": False}
    history = model.fit(**data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return {
        "weights": [weight.tolist() for weight in model.get_weights()],
        "history": history.history,
        "epochs": history.epoch,
    }


def main():
    folder, *words = sys.argv[1:]
    place = (os.environ["TRIREME_RANK"], os.environ["TRIREME_GENERATION"])
    wrongs = [kind for kind, *where in zip(*[iter(words)] * 3, strict=True) if tuple(where) == place]
    result = train(pathlib.Path(folder), wrongs)
    if place[0] == "0":
        (pathlib.Path(folder) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
