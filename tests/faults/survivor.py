"""A plain Keras script that `test_survival.py` runs, with things that go wrong on one worker in one start."""

import json
import os
import pathlib
import sys

import keras
import numpy as np

rank, generation = os.environ["TRIREME_RANK"], os.environ["TRIREME_GENERATION"]
result, wrongs = pathlib.Path(sys.argv[1]), sys.argv[2:]


class LoopAtFifthStep(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        while batch == 5:
            pass


def pipeline(x, y, is_blocked):
    """The same rows as a pipeline, or one that never has a batch, as if its threads waited for each other."""
    import threading

    import tensorflow as tf

    def wait(*row):
        threading.Event().wait()
        return row

    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
    if is_blocked:
        specs = batches.element_spec

        def blocked(*row):
            values = tf.numpy_function(wait, row, [tf.float32, tf.float32])
            return tuple(
                tf.ensure_shape(value, spec.shape) for value, spec in zip(values, specs, strict=True)
            )

        batches = batches.map(blocked)
    return batches


def main() -> None:
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
    if f"loop on {rank} in {generation}" in wrongs:
        callbacks.append(LoopAtFifthStep())
    data = {"x": x, "y": y, "batch_size": 10}
    if f"blocked input in {generation}" in wrongs:
        data = {"x": pipeline(x, y, is_blocked=rank == "1"), "shuffle": False}
    history = model.fit(**data, epochs=3, verbose=0, callbacks=callbacks)
    if rank == "0":
        weights = [weight.ravel().tolist() for weight in model.get_weights()]
        result.write_text(
            json.dumps({"weights": weights, "history": history.history, "epochs": history.epoch})
        )


if __name__ == "__main__":
    main()
