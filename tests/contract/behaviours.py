"""What workers do together that one device has no counterpart for; each behaviour runs in every worker."""

import contextlib

from tests.contract.cases import line, mlp, rows

BEHAVIOURS = {}


def behaviour(function):
    BEHAVIOURS[function.__name__] = function
    return function


def run_behaviours(folder):
    """Runs every behaviour in a worker; a failed one has its traceback instead of its result."""
    import traceback

    import keras

    import trireme

    strategy = trireme.MirroredStrategy()
    results = {"rank": strategy.cluster.rank, "num_replicas": strategy.num_replicas_in_sync}
    for name, function in BEHAVIOURS.items():
        keras.utils.set_random_seed(11)
        try:
            results[name] = function(strategy, folder)
        except Exception:
            results[name] = traceback.format_exc()
    return results


@behaviour
def collectives(strategy, folder):
    import numpy as np

    rank, backend = strategy.cluster.rank, strategy.backend
    return {
        "sum": backend.all_reduce(np.array([rank + 1, 10 * rank], np.int64)).tolist(),
        "wide sum": float(backend.all_reduce(np.array([2.0**40 + rank + 0.5]))[0]),
        "max": backend.all_reduce(np.array([[rank, -rank]], np.int32), "max").tolist(),
        "gather": [part.tolist() for part in backend.all_gather(np.full((rank + 1, 1), rank, np.float32))],
        "broadcast": float(backend.broadcast(np.float64(rank + 0.1))),
        "reduce": strategy.reduce("MEAN", np.float32([[rank, 1], [rank, 2]]), axis=0).tolist(),
        "gather axis 1": strategy.gather(np.full((2, rank + 1), rank), axis=1).tolist(),
    }


@behaviour
def initial_weights(strategy, folder):
    """Every worker draws other numbers, from Keras' and from NumPy's generator."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(strategy.cluster.rank)
    np.random.seed(strategy.cluster.rank)
    model = mlp(strategy, "adam")
    x, y = rows(24)
    own = model.get_weights()[0].sum()
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return {
        "drawn": float(own),
        "trained": [w.tolist() for w in model.get_weights()],
        "loss": history.history["loss"],
    }


@behaviour
def stop_by_one_worker_in_an_epoch(strategy, folder):
    import keras

    x, y = rows(64)
    model = mlp(strategy)

    class StopOnLastWorker(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3 and strategy.cluster.rank == strategy.cluster.num_workers - 1:
                self.model.stop_training = True

    # Only that worker has the callback at all.
    is_last = strategy.cluster.rank == strategy.cluster.num_workers - 1
    model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[StopOnLastWorker()] if is_last else None)
    return {"iterations": int(model.optimizer.iterations), "weights": model.get_weights()[0].tolist()}


@behaviour
def stop_by_one_worker_between_epochs(strategy, folder):
    import keras

    def stop(epoch, logs):
        if epoch == 1 and strategy.cluster.rank == 0:
            model.stop_training = True

    x, y = rows(32)
    model = mlp(strategy)
    callback = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    return len(model.fit(x, y, batch_size=8, epochs=9, verbose=0, callbacks=[callback]).epoch)


@behaviour
def logs_of_batches(strategy, folder):
    import keras

    seen = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))
    x, y = rows(40)
    mlp(strategy).fit(x, y, batch_size=16, verbose=0, callbacks=[callback])
    return seen


@behaviour
def files_are_the_chiefs(strategy, folder):
    import os

    import keras

    calls = []

    class Checkpoint(keras.callbacks.ModelCheckpoint):
        def on_epoch_end(self, epoch, logs=None):
            calls.append(epoch)
            super().on_epoch_end(epoch, logs)

    x, y = rows(16)
    own_folder = os.path.join(folder, "files")
    callbacks = [
        Checkpoint(os.path.join(own_folder, "best.keras"), save_best_only=True, monitor="loss"),
        keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
    ]
    history = mlp(strategy).fit(x, y, batch_size=8, epochs=3, verbose=1, callbacks=callbacks)
    strategy.backend.barrier()
    with open(os.path.join(folder, "log.csv")) as file:
        lines = file.read().splitlines()
    return {"calls": calls, "lines": len(lines), "epochs": history.epoch, "files": os.listdir(own_folder)}


@behaviour
def resumed_by_keras_own_backup(strategy, folder):
    import os

    import keras

    x, y = rows(24)
    path = os.path.join(folder, "backup")

    class Crash(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyError("crash")

    def train(*more):
        backup = keras.callbacks.BackupAndRestore(path, delete_checkpoint=False)
        model = mlp(strategy)
        history = model.fit(x, y, batch_size=8, epochs=4, verbose=0, shuffle=False, callbacks=[backup, *more])
        return history.epoch, model.get_weights()[0].tolist()

    with contextlib.suppress(KeyError):
        train(Crash())
    # Only the chief has the file's path for sure; what matters is that all workers go on together.
    strategy.backend.barrier()
    return train()


@behaviour
def sparse_gradients_stay_sparse(strategy, folder):
    import keras
    import numpy as np

    kinds = []

    class Spy(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            kinds.append((type(gradient).__name__, len(variable.shape)))
            super().update_step(gradient, variable, learning_rate)

    ids = np.random.default_rng(0).integers(0, 1_000_000, size=(12, 3))
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((3,)),
                keras.layers.Embedding(1_000_000, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(Spy(0.1), "mse")
    model.fit(ids, np.ones((12, 1)), batch_size=5, verbose=0)
    table = model.get_weights()[0]
    return {"kinds": sorted(set(kinds)), "touched rows": table[np.unique(ids)].tolist()}


@behaviour
def dropout_masks(strategy, folder):
    """What a dropout layer lets through in two runs from one seed; where workers see their own rows only."""
    import keras
    import numpy as np

    if strategy.backend.sees_global_batch:
        return None

    class Recorder(keras.layers.Layer):
        def call(self, inputs):
            if keras.backend.backend() == "tensorflow":
                import tensorflow as tf

                return tf.ensure_shape(tf.numpy_function(record, [inputs], tf.float32), inputs.shape)
            if inputs.is_meta:
                return inputs
            return keras.ops.convert_to_tensor(record(keras.ops.convert_to_numpy(inputs)))

    def record(array):
        seen.append(array.tolist())
        return array

    runs = []
    for _ in range(2):
        seen = []
        keras.utils.set_random_seed(5)
        with strategy.scope():
            inputs = keras.Input((32,))
            outputs = keras.layers.Dense(1)(inputs)
            recorded = Recorder()(keras.layers.Dropout(0.5)(inputs))
            model = keras.Model(inputs, [outputs, recorded])
            model.compile("sgd", ["mse", None])
        model.fit(
            np.ones((8, 32)), [np.ones((8, 1)), np.ones((8, 32))], batch_size=4, verbose=0, shuffle=False
        )
        runs.append([array for array in seen if len(array) == 2])
    return runs


def message_of(call):
    """Returns the type and the message of the error that a call ends with."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "was taken"


@behaviour
def refused_inputs(strategy, folder):
    import scipy.sparse
    import tensorflow as tf

    x, y = rows(8)
    model = mlp(strategy)
    vectors = tf.data.Dataset.from_tensor_slices((x, y))
    return {
        "scalars": message_of(lambda: model.predict(tf.data.Dataset.range(5), verbose=0)),
        "unbatched": message_of(lambda: model.fit(vectors, verbose=0)),
        "unbatched validation": message_of(lambda: model.fit(x, y, validation_data=vectors, verbose=0)),
        "unbatched generator": message_of(
            lambda: model.fit((pair for pair in zip(x, y, strict=True)), verbose=0)
        ),
        "different lengths": message_of(lambda: model.fit(x, y[:5], verbose=0)),
        "sparse": message_of(lambda: model.predict(scipy.sparse.csr_matrix(x), verbose=0)),
        "an empty part": message_of(
            lambda: model.fit(
                strategy.distribute_datasets_from_function(
                    lambda context: vectors.batch(4).take(
                        context.num_input_pipelines - 1 - strategy.cluster.rank
                    )
                ),
                verbose=0,
            )
        ),
    }


@behaviour
def inputs_that_differ_between_workers(strategy, folder):
    """What each worker is told, and whether anybody has trained on them."""
    import numpy as np
    import tensorflow as tf

    rank = strategy.cluster.rank
    x, y = rows(32)
    other = np.where(np.arange(32)[:, None] == 20 * rank, x + 1, x)
    model = mlp(strategy)
    before = model.get_weights()

    def batches(count, change_at=None):
        for index in range(count):
            yield x[:8] + (rank if index == change_at else 0), y[:8]

    def narrow():
        yield x[:8], y[:8]
        yield x[: 8 - rank], y[: 8 - rank]

    signature = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    messages = {
        "contents of arrays": message_of(lambda: model.fit(other, y, verbose=0)),
        "lengths of arrays": message_of(lambda: model.fit(x[: 32 - rank], y[: 32 - rank], verbose=0)),
        "validation": message_of(lambda: model.fit(x, y, validation_data=(other, y), verbose=0)),
        "evaluated": message_of(lambda: model.evaluate(x, y + rank, verbose=0)),
        "predicted": message_of(lambda: model.predict(other, verbose=0)),
        "contents of a generator": message_of(lambda: model.fit(batches(3, change_at=0), verbose=0)),
        "a batch": message_of(lambda: model.train_on_batch(x + rank, y)),
        "a kind": message_of(
            lambda: model.predict(x if rank else (batch[:1] for batch in batches(4)), verbose=0)
        ),
    }
    unchanged = all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    messages["trained on them"] = not unchanged
    messages["shapes in a generator"] = message_of(lambda: model.fit(narrow(), verbose=0))
    messages["length of a generator"] = message_of(lambda: model.fit(batches(3 + rank), verbose=0))
    messages["length of a dataset"] = message_of(
        lambda: model.evaluate(
            tf.data.Dataset.from_generator(lambda: batches(5 + rank), output_signature=signature), verbose=0
        )
    )
    # All of them are still in step.
    model.fit(x, y, batch_size=8, verbose=0)
    return {**messages, "weights": [weight.tolist() for weight in model.get_weights()]}


@behaviour
def both_sums_of_a_gradient(strategy, folder):
    """A kernel's gradient that overflows half precision when it is summed in it, but not its mean."""
    import keras
    import numpy as np

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((1,)),
                keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype="float16"),
            ]
        )
        model.compile(keras.optimizers.SGD(1e-4), keras.losses.MeanAbsoluteError(dtype="float32"))
    x = np.full((4, 1), 40000, "float16")
    model.fit(x, np.full((4, 1), 1.0, "float32"), batch_size=4, verbose=0)
    return float(model.get_weights()[0].ravel()[0])


@behaviour
def a_line_with_unequal_parts(strategy, folder):
    """Rows that each worker sees itself: of 7 rows, some workers have more than others."""
    import numpy as np

    x, y = np.arange(7, dtype="float32")[:, None], np.zeros((7, 1), "float32")
    model = line(strategy, kernel="ones", learning_rate=0.01)
    adapter = strategy.backend.shard(_source(x, y))
    if strategy.backend.name == "jax":
        [batch] = list(adapter.get_jax_iterator())
        mine = [float(row) for part in batch[0].addressable_shards for row in np.asarray(part.data).ravel()]
    elif strategy.backend.name == "torch":
        [batch] = list(adapter.get_torch_dataloader())
        mine = batch.data[0].numpy().ravel().tolist()
    else:
        [batch] = list(adapter.get_tf_dataset())
        mine = batch.data[0].numpy().ravel().tolist()
    model.fit(x, y, batch_size=7, verbose=0)
    return {"mine": mine, "kernel": float(model.get_weights()[0].ravel()[0])}


def _source(x, y):
    from trireme.backends.adapters import choose_source

    return choose_source(x, y, batch_size=7, shuffle=False)


@behaviour
def forks_end_by_sigterm(strategy, folder):
    """How two forks end: of a worker, and of one that takes the signal itself, as during a backed up training."""
    import multiprocessing
    import time

    from trireme.backends.preemption import Preemption

    def how_one_ends():
        ours, its = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork").Process(
            target=lambda: (its.send("begun"), time.sleep(60)), daemon=True
        )
        fork.start()
        assert ours.poll(30), "the fork did not begin"
        fork.terminate()
        fork.join(10)
        code = fork.exitcode
        fork.kill()
        fork.join()
        return code

    with Preemption(strategy.backend) as preemption:
        codes = [how_one_ends()]
        assert not preemption.is_agreed_now(0)
    return [how_one_ends(), *codes]


@behaviour
def metrics_that_cannot_be_put_together(strategy, folder):
    import keras

    class Largest(keras.metrics.Metric):
        def __init__(self, aggregation="sum", start="zeros", offset=-100):
            super().__init__(name="largest")
            self.offset = offset
            self.largest = self.add_variable((), start, aggregation=aggregation, name="value")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(y_pred + self.offset)))

        def result(self):
            return self.largest + 0.0

    class Listed(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="listed")
            self.seen = []

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.seen.append(y_pred.shape[0])

        def result(self):
            return keras.ops.convert_to_tensor(0.0)

    x, y = rows(24)
    messages = {}
    for name, metric in {
        "a running maximum": Largest(),
        "a running maximum from minus infinity": Largest(start=keras.initializers.Constant(float("-inf"))),
        "a maximum of each worker's own": Largest("none", offset=100),
        "a list": Listed(),
    }.items():
        epochs = []
        callback = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs, seen=epochs: seen.append(logs)
        )
        model = mlp(strategy, metrics=[metric])
        try:
            model.fit(x, y, batch_size=8, verbose=0, callbacks=[callback])
            messages[name] = f"was taken: {epochs}"
        except Exception as error:
            messages[name] = f"{type(error).__name__}: {error}" if not epochs else f"too late: {epochs}"
    return messages


@behaviour
def loops_that_cannot_be_right(strategy, folder):
    """Other weights on each worker; on JAX, any loop outside of Keras' own on several processes."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(strategy.cluster.rank)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    gradients = [keras.ops.ones(weight.shape) for weight in model.trainable_weights]
    try:
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return ["was taken", [np.asarray(weight).tolist() for weight in model.get_weights()]]


@behaviour
def exchanges_of_accumulated_gradients(strategy, folder):
    """How often as many numbers as the model has are summed over the workers."""
    import keras

    from trireme.backends.shared_memory import SharedMemoryGroup

    if strategy.backend.name == "jax":
        return None
    x, y = rows(48)
    model = mlp(strategy, keras.optimizers.SGD(0.1, gradient_accumulation_steps=3))
    sums = []
    if strategy.backend.name == "torch":
        owner, name = strategy.backend.collectives, "start_sum"
    else:
        owner, name = SharedMemoryGroup, "reduce_into"
    original = getattr(owner, name)

    def spy(*arguments, **options):
        arrays = arguments[1] if owner is SharedMemoryGroup else arguments[0]
        sums.append(sum(len(array.reshape(-1)) for array in arrays))
        return original(*arguments, **options)

    setattr(owner, name, spy)
    try:
        model.fit(x, y, batch_size=8, verbose=0)
    finally:
        if owner is SharedMemoryGroup:
            owner.reduce_into = original
        else:
            del owner.start_sum
    return {"sums": sums.count(model.count_params()), "updates": int(model.optimizer.iterations)}


@behaviour
def what_verify_finds(strategy, folder):
    """Models that differ from one device, each for a reason of its own."""
    import keras

    def sequential(*layers):
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((4,)), *layers, keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"], run_eagerly=is_eager)
        return model

    # Eager steps are made sooner than compiled ones, where eager operations are not compiled one by one.
    is_eager = strategy.backend.name != "jax"

    class SumOfRows(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.sum(keras.ops.square(y - y_pred)) / 8

    with strategy.scope():
        sums = SumOfRows([keras.layers.Input((4,)), keras.layers.Dense(1)])
        sums.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=is_eager)
    x, y = rows(24)
    models = {
        "plain": sequential(keras.layers.Dense(3)),
        "random": sequential(keras.layers.Dropout(0.5)),
        "batch norm": sequential(keras.layers.BatchNormalization()),
        "sum": sums,
    }
    reports = {}
    for name, model in models.items():
        before = [weight.copy() for weight in model.get_weights()]
        # One of them by batches that can be read once only.
        data = ((x[start : start + 8], y[start : start + 8]) for start in range(0, 24, 8))
        report = (
            strategy.verify(model, data, num_steps=2)
            if name == "plain"
            else strategy.verify(model, (x, y), batch_size=8, num_steps=2)
        )
        is_same = all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
        reports[name] = {"text": str(report), "is exact": report.is_exact, "left as it was": is_same}
    return reports
