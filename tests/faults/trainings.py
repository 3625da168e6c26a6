"""Trainings that are interrupted and gone on with, all within one process; they run in workers."""

import contextlib
import contextvars
import errno
import itertools
import pathlib
import tempfile
import warnings

from tests.faults import survivor

EPOCHS, ROWS, BATCH_SIZE = 3, 70, 10


class Interrupted(Exception):
    pass


def data():
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 5)).astype("float32")
    return x, (x.sum(axis=1) > 0).astype("float32")


def seeded_model(seed=3, units=6, is_small=False, micro_steps=None):
    import keras

    import trireme

    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    with trireme.MirroredStrategy().scope():
        layers = [
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dropout(0.4),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
        model = keras.Sequential(layers[-1:] if is_small else layers)
        optimizer = keras.optimizers.Adam(0.02, gradient_accumulation_steps=micro_steps)
        model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    return model


def deciding():
    """Callbacks whose decisions hang on all epochs before; the schedule applies itself at each epoch's begin."""
    import keras

    return [
        keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=0.2),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.EarlyStopping(monitor="loss", patience=2, min_delta=0.2, restore_best_weights=True),
    ]


def interrupt_at(count):
    import keras

    class Interrupt(keras.callbacks.Callback):
        num_batches = 0

        def on_train_batch_begin(self, batch, logs=None):
            self.num_batches += 1
            if self.num_batches == count:
                raise Interrupted

    return Interrupt()


def result(model, history):
    return {
        "weights": [weight.tolist() for weight in model.get_weights()],
        "history": history.history,
        "epochs": history.epoch,
    }


def inputs(kind):
    """The arguments of `fit` for one kind of input. Made after the seed was set, as in a script."""
    x, y = data()
    common = {"epochs": EPOCHS, "verbose": 0}
    if kind in ("arrays", "arrays, accumulated", "arrays, restarted with another seed"):
        return {"x": x, "y": y, "batch_size": BATCH_SIZE, "validation_data": (x[:20], y[:20]), **common}
    if kind == "arrays, shuffled by batches":
        return {"x": x, "y": y, "batch_size": BATCH_SIZE, "shuffle": "batch", **common}
    if kind == "arrays, epochs that end in between":
        return {"x": x, "y": y, "batch_size": BATCH_SIZE, "steps_per_epoch": 5, **common}
    if kind.startswith("DataLoader"):
        return {"x": loader(x, y, kind), **common}
    if kind == "PyDataset":
        return {"x": batches_by_number(x, y), **common}
    if kind == "grain":
        return {"x": grain_batches(x, y), "shuffle": False, **common}
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((x, y))
    pipelines = {
        "tf.data": lambda: rows.shuffle(ROWS).batch(BATCH_SIZE).prefetch(2),
        "tf.data, cached after its shuffle": lambda: rows.shuffle(ROWS).cache().batch(BATCH_SIZE),
        "tf.data, shuffled twice in an epoch": lambda: rows.shuffle(ROWS).repeat(2).batch(2 * BATCH_SIZE),
        "tf.data, of unknown length": lambda: rows.shuffle(ROWS).batch(BATCH_SIZE).filter(lambda *row: True),
        "tf.data, endless": lambda: rows.shuffle(ROWS).repeat().batch(BATCH_SIZE),
    }
    endless = {"steps_per_epoch": 5} if kind == "tf.data, endless" else {}
    return {"x": pipelines[kind](), "shuffle": False, **endless, **common}


def loader(x, y, kind):
    import torch

    # On other backends Keras' seed is not PyTorch's.
    torch.manual_seed(3)
    rows = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    if kind == "DataLoader":
        return torch.utils.data.DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return (rows[int(number)] for number in torch.randperm(len(rows)))

    return torch.utils.data.DataLoader(Stream(), batch_size=BATCH_SIZE)


def batches_by_number(x, y):
    import keras

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return ROWS // BATCH_SIZE

        def __getitem__(self, number):
            rows = slice(number * BATCH_SIZE, (number + 1) * BATCH_SIZE)
            return x[rows], y[rows]

    return Batches()


def grain_batches(x, y):
    import grain

    return grain.MapDataset.source(list(zip(x, y, strict=True))).shuffle(seed=1).batch(BATCH_SIZE)


def undisturbed_and_resumed(interruptions_of):
    """For each kind of input the result of a plain `fit`, and those of interrupted ones that were gone on with.

    Args:
        interruptions_of: by name of a kind that `inputs` knows, pairs of the step to interrupt at and the `save_freq`.
    """
    import keras

    import trireme

    results = {}
    for kind, interruptions in interruptions_of.items():
        # What matters of most kinds is the order of the rows, and on these backends to compile a model takes long.
        is_small = not kind.startswith("arrays") and keras.backend.backend() != "torch"
        # Backups after 3, 6 and 9 steps, the last of which is in the middle of a sum.
        options = {"is_small": is_small, "micro_steps": 4 if kind == "arrays, accumulated" else None}
        model = seeded_model(**options)
        undisturbed = result(model, model.fit(**inputs(kind), callbacks=deciding()))
        resumed = []
        for step, save_freq in interruptions:
            with tempfile.TemporaryDirectory() as folder:
                location = f"memory:/{folder}" if "another seed" in kind else folder

                def train(*more, seed=3, location=location, save_freq=save_freq, kind=kind, options=options):
                    model = seeded_model(seed, **options)
                    backup = trireme.BackupAndRestore(location, save_freq)
                    return result(model, model.fit(**inputs(kind), callbacks=[backup, *deciding(), *more]))

                try:
                    train(interrupt_at(step))
                except Interrupted:
                    resumed.append(train(seed=4 if "another seed" in kind else 3))
        results[kind] = {"undisturbed": undisturbed, "resumed": resumed}
    return results


def ends_and_refusals():
    """What happens around the training: after its end, with a second one, with another model or input."""
    import keras
    from keras.src.trainers.epoch_iterator import EpochIterator

    import trireme

    found = {}
    x, y = data()
    options = {"x": x, "y": y, "batch_size": BATCH_SIZE, "verbose": 0}
    with tempfile.TemporaryDirectory() as folder:

        def fit(epochs, model=None, **changed):
            from trireme.backends import backup

            # As a program that was started again.
            backup._num_finished.clear()
            model = model or seeded_model()
            history = model.fit(
                **{**options, **changed}, epochs=epochs, callbacks=[trireme.BackupAndRestore(folder, keep=2)]
            )
            return result(model, history)

        found["first"] = fit(2)
        found["again"] = fit(2)
        found["more epochs"] = fit(3)
        found["files"] = len(list(pathlib.Path(folder).glob("*.manifest")))
        found["other model"] = error_of(lambda: fit(4, seeded_model(units=7)))
        model = seeded_model()
        callback = trireme.BackupAndRestore(folder)
        model.fit(**options, epochs=1, callbacks=[callback])
        second = model.fit(**options, epochs=1, callbacks=[callback])
        found["second fit of a program"] = second.epoch
        found["folders"] = sorted(path.name for path in pathlib.Path(folder).iterdir() if path.is_dir())
    with tempfile.TemporaryDirectory() as folder:
        try:
            seeded_model().fit(
                **options, epochs=2, callbacks=[trireme.BackupAndRestore(folder, 2), interrupt_at(4)]
            )
        except Interrupted:
            found["other batches"] = error_of(
                lambda: seeded_model().fit(
                    x, y, batch_size=5, epochs=2, verbose=0, callbacks=[trireme.BackupAndRestore(folder, 2)]
                )
            )
    found["save_freq"] = error_of(lambda: trireme.BackupAndRestore("anywhere", save_freq=0))
    found["keep"] = error_of(lambda: trireme.BackupAndRestore("anywhere", keep=0))
    found["full disk"] = warnings_of((x, y), save_freq=3, full_for=2)
    found["generator"] = warnings_of([iter_rows(x, y)])
    # Whoever runs this may be in a scope.
    found["no strategy"] = contextvars.Context().run(error_of, fit_without_a_strategy)
    found["class is Keras' own"] = all(
        pathlib.Path(keras.__file__).parent in pathlib.Path(method.__code__.co_filename).parents
        for method in (keras.Model.fit, EpochIterator.__init__, EpochIterator._enumerate_iterator)
    )
    found["is a callback"] = isinstance(trireme.BackupAndRestore("anywhere"), keras.callbacks.Callback)
    return found


def iter_rows(x, y):
    yield from [(x[:10], y[:10])] * 3


def unseeded_pipeline(x, y):
    import tensorflow as tf

    tf.random.set_seed(None)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(ROWS).batch(BATCH_SIZE)


def fit_without_a_strategy():
    import keras

    import trireme

    x, y = data()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0, callbacks=[trireme.BackupAndRestore("anywhere")])


def error_of(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def warnings_of(data, save_freq="epoch", full_for=0):
    """The warnings of a training, and how many backups it leaves.

    Args:
        data: the data, as `fit` takes them.
        save_freq: as of `BackupAndRestore`.
        full_for: how many backups find no room.
    """
    import keras

    import trireme

    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(record=True) as caught,
        full_disk(full_for),
    ):
        warnings.simplefilter("always")
        callback = trireme.BackupAndRestore(folder, save_freq, keep=9)
        # The writer would drop one that waits while the next comes.
        flush = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: callback._writer.flush()
        )
        batch_size = BATCH_SIZE if len(data) > 1 else None
        seeded_model().fit(*data, batch_size=batch_size, verbose=0, callbacks=[callback, flush])
        count = len(list(pathlib.Path(folder).glob("*.manifest")))
    return [str(one.message) for one in caught if one.category.__name__ == "BackupWarning"], count


@contextlib.contextmanager
def full_disk(num_writes):
    """Lets the first writes of backups fail in the middle, as on a disk that fills up."""
    from trireme.recovery.store import LocalStore

    original, left = LocalStore.write, [num_writes]

    def write(self, name, parts):
        if left[0] > 0:
            left[0] -= 1
            parts = itertools.chain(itertools.islice(parts, 1), no_space())
        original(self, name, parts)

    LocalStore.write = write
    try:
        yield
    finally:
        LocalStore.write = original


def no_space():
    raise OSError(errno.ENOSPC, "No space left on device")
    yield


def train_without_chance(folder=None, interrupt_after=None):
    """Without dropout the number of workers makes no difference. Gradients are summed over three steps.

    A backup is made after every second step, so the last before an interruption at the sixth is in the middle of a sum.
    """
    import keras

    import trireme

    keras.utils.set_random_seed(5)
    with trireme.MirroredStrategy().scope():
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.02, gradient_accumulation_steps=3), "mse", metrics=["mae"])
    x, y = data()
    callbacks = [] if folder is None else [trireme.BackupAndRestore(folder, save_freq=2)]
    if interrupt_after:
        callbacks.append(interrupt_at(interrupt_after))
    try:
        history = model.fit(x, y, batch_size=BATCH_SIZE, epochs=2, verbose=0, callbacks=callbacks)
    except Interrupted:
        return None
    return result(model, history)


def of_one_worker(interruptions_of, folder):
    import keras

    found = {"undisturbed": train_without_chance()}
    train_without_chance(f"{folder}/by-one", interrupt_after=6)
    found["resumed"] = undisturbed_and_resumed(interruptions_of)
    if keras.backend.backend() == "tensorflow":
        found["unseeded"], _ = warnings_of((unseeded_pipeline(*data()),))
    return found


def undisturbed_survivor(seed):
    """What the script of the survival tests ends with when nothing happens to it."""
    import keras

    import trireme

    keras.utils.set_random_seed(seed)
    with trireme.MirroredStrategy().scope():
        return survivor.train()


def of_two_workers(interruptions_of, folder):
    found = {"more workers": train_without_chance(f"{folder}/by-one")}
    train_without_chance(f"{folder}/by-two", interrupt_after=6)
    found["resumed"] = undisturbed_and_resumed(interruptions_of)
    return found


def of_one_worker_again(folder, with_refusals):
    found = {"fewer workers": train_without_chance(f"{folder}/by-two")}
    return {**found, **ends_and_refusals()} if with_refusals else found
