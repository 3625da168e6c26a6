"""Trainings by a `ParameterServerStrategy` in two worker processes, and the same ones on one plain device.

Servers are threads of worker 0, new ones for every case, so that all cases of a backend share one start of the
frameworks. `test_training.py` looks at what comes out.
"""

import contextlib
import functools
import json
import os
import pathlib
import tempfile
import threading
import time

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def run_cases(folder, names=None):
    """Runs the cases in a worker; returns for each `{"plain": ..., "servers": ...}`, or the traceback."""
    import traceback

    results = {}
    for name in names or CASES:
        try:
            results[name] = CASES[name](functools.partial(strategy_with_servers, folder, name))
        except Exception:
            results[name] = traceback.format_exc()
    return results


@contextlib.contextmanager
def strategy_with_servers(folder, name, num_servers=1, **options):
    """A strategy of this worker's with servers of its own."""
    import trireme
    from trireme.cluster.resolve import resolve

    cluster = resolve(os.environ)
    threads = []
    addresses = _addresses(pathlib.Path(folder), f"{name}-{num_servers}", cluster, num_servers, threads)
    environ = {"TRIREME_SERVERS": ",".join(addresses), "TRIREME_RUN_ID": name}
    previous = {key: os.environ.get(key) for key in environ}
    os.environ.update(environ)
    try:
        strategy = trireme.ParameterServerStrategy(**options)
        strategy.connect = _with_all(strategy.connect, pathlib.Path(folder), f"{name}-{num_servers}", cluster)
        yield strategy
        strategy.exchange.finish()
    finally:
        for key, value in previous.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a server did not end with its workers"


def _with_all(connect, folder, name, cluster):
    """`connect` that returns when all workers have connected: one that comes later would miss epochs, as it may."""

    def connect_with_all(model):
        current_round = connect(model)
        (folder / f"{name}-{cluster.rank}.here").touch()
        others = [folder / f"{name}-{rank}.here" for rank in range(cluster.num_workers)]
        give_up = time.monotonic() + 60
        while not all(other.exists() for other in others):
            assert time.monotonic() < give_up, "another worker did not connect"
            time.sleep(0.01)
        return current_round

    return connect_with_all


def _addresses(folder, name, cluster, num_servers, threads):
    path = folder / name
    if cluster.rank == 0:
        addresses = [_start_server(rank, name, cluster.num_workers, threads) for rank in range(num_servers)]
        path.with_suffix(".part").write_text(json.dumps(addresses))
        path.with_suffix(".part").rename(path)
    give_up = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < give_up, "worker 0 started no servers"
        time.sleep(0.01)
    return json.loads(path.read_text())


def _start_server(rank, name, num_workers, threads):
    from trireme.backends.parameter_server.updater import KerasUpdater
    from trireme.parameter_server import TOLD_BY_WORKERS, Rules, serve

    run_id = name.rpartition("-")[0]
    rules = Rules(num_workers, run_id, rank == 0, TOLD_BY_WORKERS)
    listening, found = threading.Event(), []
    thread = threading.Thread(
        target=serve,
        args=("127.0.0.1:0", KerasUpdater(), rules),
        kwargs={"on_listening": lambda address: (found.append(address), listening.set())},
        daemon=True,
    )
    thread.start()
    assert listening.wait(60)
    threads.append(thread)
    return found[0]


def rows(num_rows, num_features=4, seed=0):
    import numpy as np

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, num_features)).astype("float32")
    y = (x @ rng.normal(size=(num_features, 1)) + 0.3 * x[:, :1] * x[:, 1:2]).astype("float32")
    return x, y


def numbers_of(model, history):
    numbers = {f"weight {index}": weight for index, weight in enumerate(model.get_weights())}
    numbers |= {f"history {name}": values for name, values in history.history.items() if name != "staleness"}
    return numbers


def both(train, make_strategy, **options):
    """The numbers of `train(scope)` under the strategy and on plain Keras."""
    import keras

    keras.utils.set_random_seed(7)
    with make_strategy(**options) as strategy:
        by_servers = train(strategy.scope)
    keras.utils.set_random_seed(7)
    return {"servers": by_servers, "plain": train(contextlib.nullcontext)}


def mlp(scope, optimizer, loss="mse", **options):
    import keras

    with scope():
        model = keras.Sequential(
            [
                keras.layers.Input((4,)),
                keras.layers.Dense(8, activation="tanh", **options),
                keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer(), loss, metrics=["mae"])
    return model


def _trained(optimizer, scope, callbacks=lambda: [], **options):
    x, y = rows(61)
    model = mlp(scope, optimizer, **options)
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False, callbacks=callbacks())
    return numbers_of(model, history) | {"updates": int(model.optimizer.iterations)}


def _optimizer(kind, **options):
    import keras

    return lambda: getattr(keras.optimizers, kind)(**options)


@case
def validated_evaluated_and_predicted(make_strategy):
    def train(scope):
        x, y = rows(61)
        model = mlp(scope, _optimizer("SGD", learning_rate=0.05))
        data = {"validation_data": (x[:9], y[:9]), "validation_batch_size": 4}
        history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, shuffle=False, **data)
        numbers = numbers_of(model, history)
        numbers["evaluated"] = model.evaluate(x[:21], y[:21], batch_size=8, verbose=0)
        numbers["predicted"] = model.predict(x[:5], verbose=0)
        return numbers

    return both(train, make_strategy, max_staleness=0)


@case
def one_call_after_the_other(make_strategy):
    """Between calls the script changes rows, weights and the learning rate."""

    def train(scope):
        x, y = rows(61)
        model = mlp(scope, _optimizer("SGD", learning_rate=0.05))
        data = {"validation_data": (x, y), "validation_batch_size": 8, "validation_steps": 3}
        fit = functools.partial(model.fit, x, y, batch_size=16, epochs=2, verbose=0, shuffle=False, **data)

        def evaluate(num_rows, **options):
            return model.evaluate(x[:num_rows], y[:num_rows], batch_size=8, verbose=0, **options)

        numbers = {"evaluated before": evaluate(61, steps=2)}
        first = fit()
        numbers |= {"evaluated": [evaluate(21), evaluate(61), evaluate(61, steps=3), evaluate(61, steps=99)]}
        model.set_weights([weight / 2 for weight in model.get_weights()])
        numbers |= {"evaluated with other weights": evaluate(61), "predicted": model.predict(x, verbose=0)}
        model.optimizer.learning_rate = 0.01
        second = fit()
        numbers["evaluated after"] = evaluate(33)
        again = {f"again {name}": value for name, value in numbers_of(model, second).items()}
        return numbers | numbers_of(model, first) | again

    return both(train, make_strategy, num_servers=2, max_staleness=0)


@case
def two_outputs_and_a_loss_that_is_tracked(make_strategy):
    """Numbers that stand for a batch as a whole, of which the last has parts of 8 and 2 rows."""
    import keras
    import numpy as np

    class Tracking(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tracker = keras.metrics.Mean(name="tracked")

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            self.tracker.update_state(loss)
            return loss

    x, y = rows(42)
    classes = np.arange(42) % 3
    weights = {"value": np.linspace(0, 2, 42), "class": np.linspace(1, 0, 42)}

    def train(scope):
        with scope():
            inputs = keras.Input((4,))
            hidden = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2")(inputs)
            outputs = {
                "value": keras.layers.Dense(1, name="value")(hidden),
                "class": keras.layers.Dense(3, activation="softmax", name="class")(hidden),
            }
            model = Tracking(inputs, outputs)
            losses = {"value": "mse", "class": "sparse_categorical_crossentropy"}
            options = {"metrics": {"class": "accuracy"}, "weighted_metrics": {"value": "mae"}}
            model.compile(
                keras.optimizers.SGD(0.05), losses, loss_weights={"value": 1.0, "class": 0.3}, **options
            )
        data = {"y": {"value": y, "class": classes}, "sample_weight": weights}
        history = model.fit(x, **data, batch_size=16, epochs=2, shuffle=False, verbose=0)
        evaluated = model.evaluate(x, **data, batch_size=16, verbose=0, return_dict=True)
        return numbers_of(model, history) | {f"evaluated {name}": value for name, value in evaluated.items()}

    return both(train, make_strategy, max_staleness=0)


@case
def callbacks_that_change_the_model(make_strategy):
    import keras

    x, y = rows(61)
    tested = []

    class Meddler(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.optimizer.learning_rate = 0.02

        def on_epoch_begin(self, epoch, logs=None):
            if epoch < 2:
                self.model.set_weights([weight / 2 for weight in self.model.get_weights()])
            if epoch == 2:
                # From here on it becomes worse, so that the best epoch is not the last.
                self.model.optimizer.learning_rate = -0.1

        def on_epoch_end(self, epoch, logs=None):
            tested.append(self.model.evaluate(x[:33], y[:33], batch_size=8, verbose=0))

    def callbacks():
        stop = keras.callbacks.EarlyStopping("loss", patience=2, restore_best_weights=True)
        return [Meddler(), stop]

    def train(scope):
        tested.clear()
        model = mlp(scope, _optimizer("SGD", learning_rate=0.05))
        history = model.fit(x, y, batch_size=16, epochs=9, verbose=0, shuffle=False, callbacks=callbacks())
        numbers = numbers_of(model, history)
        numbers["tested"] = list(tested)
        numbers["evaluated after"] = model.evaluate(x, y, batch_size=8, verbose=0)
        return numbers

    return both(train, make_strategy, num_servers=2, max_staleness=0)


def _lock_step(num_servers, kind, options, make_strategy):
    return both(
        functools.partial(_trained, _optimizer(kind, **options)),
        make_strategy,
        num_servers=num_servers,
        max_staleness=0,
    )


for _name, (_num_servers, _kind, _options) in {
    "adam_on_two_servers": (2, "Adam", {"learning_rate": 0.01}),
    "clipnorm": (2, "SGD", {"learning_rate": 0.05, "clipnorm": 0.2}),
    "global_clipnorm": (1, "Adam", {"learning_rate": 0.01, "global_clipnorm": 0.3}),
    "ema": (1, "SGD", {"learning_rate": 0.05, "use_ema": True, "ema_momentum": 0.8}),
}.items():
    CASES[_name] = functools.partial(_lock_step, _num_servers, _kind, _options)


@case
def learning_rate_set_by_a_callback(make_strategy):
    import keras

    def callbacks():
        return [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))]

    train = functools.partial(_trained, _optimizer("SGD", learning_rate=0.1), callbacks=callbacks)
    return both(train, make_strategy, num_servers=2, max_staleness=0)


OPTIMIZERS = {
    "momentum": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "accumulation": ("SGD", {"gradient_accumulation_steps": 2}),
    "averages that become weights": (
        "SGD",
        {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3},
    ),
    "clipvalue": ("SGD", {"clipvalue": 0.01}),
    **{
        kind: (kind, {})
        for kind in (
            "RMSprop",
            "Adam",
            "Adadelta",
            "Adagrad",
            "Adamax",
            "Nadam",
            "Ftrl",
            "Lion",
            "Lamb",
            "Adafactor",
        )
    },
    "Muon": ("Muon", {"exclude_layers": ["dense_1"]}),
    "decay of weights": ("AdamW", {"weight_decay": 0.1}),
}


@case
def steps_of_the_servers(make_strategy):
    """Two updaters with their slices get the gradients that plain Keras gets; the largest differences of weights."""
    import keras
    import numpy as np

    from trireme.backends.parameter_server.description import describe
    from trireme.backends.parameter_server.updater import KerasUpdater

    differences = {}
    for name, (kind, options) in OPTIMIZERS.items():
        keras.utils.set_random_seed(3)
        rate = keras.optimizers.schedules.CosineDecay(0.1, 8)
        optimizer = getattr(keras.optimizers, kind)(rate, **options)
        model = mlp(
            contextlib.nullcontext, lambda optimizer=optimizer: optimizer, kernel_constraint="unit_norm"
        )
        if options.get("weight_decay"):
            optimizer.exclude_from_weight_decay(var_names=["bias"])
        optimizer.build(model.trainable_variables)
        is_cut = kind not in ("Lamb", "Adafactor", "Muon")
        described = describe(model, 2, 0, (lambda spec: 1 + (spec.shape == (8, 1))) if is_cut else None, 0)
        values = {
            n: keras.ops.convert_to_numpy(v)
            for n, v in zip(described.names, described.variables, strict=True)
        }
        servers = [KerasUpdater(), KerasUpdater()]
        for server, pieces in zip(servers, described.placement.by_server, strict=True):
            server.configure(described.settings)
            for piece in pieces:
                value = values[piece.variable]
                server.create(piece, np.array(value if piece.is_whole else value[piece.start : piece.stop]))
        rng = np.random.default_rng(4)
        for _ in range(5):
            gradients = {n: rng.normal(size=value.shape).astype("float32") for n, value in values.items()}
            optimizer.apply(list(map(keras.ops.convert_to_tensor, gradients.values())), described.variables)
            parts = [{}, {}]
            for n, gradient in gradients.items():
                for piece, part in described.placement.split_gradient(n, gradient):
                    parts[described.placement.server_of[piece.name]][piece.name] = part
            for server, part in zip(servers, parts, strict=True):
                server.apply(part)
        differences[name] = max(
            float(
                np.abs(servers[described.placement.server_of[piece.name]].read(piece.name, None) - part).max()
            )
            for n, variable in zip(described.names, described.variables, strict=True)
            for piece, part in described.placement.split(n, keras.ops.convert_to_numpy(variable))
        )
    return differences


def _by_ids(optimizer, has_repeats, scope):
    import keras
    import numpy as np

    rng = np.random.default_rng(1)
    # Of a row that comes up twice in a batch, Keras' TensorFlow optimizers square each gradient by itself, so only
    # plain SGD can be compared there.
    batches = [rng.integers(0, 40, 48) if has_repeats else rng.permutation(50)[:48] for _ in range(4)]
    ids = np.concatenate(batches).reshape(64, 3).astype("int32")
    y = rng.normal(size=(64, 1)).astype("float32")
    inputs = keras.Input((3,), dtype="int32")
    with scope():
        table = keras.layers.Embedding(50, 4, embeddings_initializer="ones")
        rows = table(inputs)
        if has_repeats:
            # The layer is used twice in a step.
            rows = keras.ops.concatenate([rows, keras.ops.tanh(table(keras.ops.flip(inputs, 1)))], axis=-1)
        outputs = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
        model = keras.Model(inputs, outputs)
        model.compile(optimizer(), "mse")
    history = model.fit(ids, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    numbers = {f"history {name}": values for name, values in history.history.items() if name != "staleness"}
    numbers["predicted"] = model.predict(ids, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        numbers["predicted by what was saved"] = keras.models.load_model(f"{folder}/model.keras").predict(
            ids, verbose=0
        )
    numbers["number of weights held"] = sum(weight.size for weight in model.get_weights())
    return numbers


for _name, (_kind, _options, _min_table_bytes) in {
    "embedding_held_by_workers": ("Adam", {"learning_rate": 0.05}, 1 << 20),
    "embedding_by_rows": ("SGD", {"learning_rate": 0.05}, 0),
    "embedding_by_rows_with_slots": ("Adagrad", {"learning_rate": 0.05}, 0),
}.items():
    CASES[_name] = functools.partial(
        lambda kind, options, min_table_bytes, make_strategy: both(
            functools.partial(_by_ids, _optimizer(kind, **options), kind == "SGD"),
            make_strategy,
            num_servers=2,
            max_staleness=0,
            min_table_bytes=min_table_bytes,
        ),
        _kind,
        _options,
        _min_table_bytes,
    )


@case
def own_pace(make_strategy):
    """Without a bound on staleness; rows are counted by a metric, and the state of batch normalisation is common."""
    import keras
    import numpy as np

    x, y = rows(203)
    with make_strategy(num_servers=2) as strategy, strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((4,)),
                keras.layers.Dense(16, activation="tanh"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(1),
            ]
        )
        rows_seen = keras.metrics.Sum(name="rows")
        count = keras.metrics.MeanMetricWrapper(
            lambda y_true, y_pred: keras.ops.ones_like(y_true[:, 0]), name="ones"
        )
        model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae", count])
        del rows_seen
        history = model.fit(x, y, batch_size=8, epochs=8, verbose=0)
    numbers = numbers_of(model, history)
    return {
        "weights": [np.asarray(weight) for weight in model.get_weights()],
        "loss": history.history["loss"],
        "staleness": history.history["staleness"],
        "rows": [float(keras.ops.convert_to_numpy(count.count))],
        "updates": int(model.optimizer.iterations),
        "names": sorted(numbers),
    }


@case
def batches_of_a_py_dataset(make_strategy):
    """Weights that do not change show that every batch counted once, at whatever pace."""
    import keras
    import numpy as np

    x, y = rows(203)

    class Batches(keras.utils.PyDataset):
        def __init__(self, num_rows, workers):
            super().__init__(workers=workers)
            self.bounds = [*range(0, num_rows, 8), num_rows]

        def __len__(self):
            return len(self.bounds) - 1

        def __getitem__(self, index):
            here = slice(*self.bounds[index : index + 2])
            return x[here], y[here], np.arange(here.start, here.stop, dtype="float32")

    def train(scope):
        model = mlp(scope, _optimizer("SGD", learning_rate=0.0))
        validation = Batches(61, workers=1)
        # Keras' own queue leaves out batches of the first epochs, those that it had read to build the model.
        workers = 1 if scope is contextlib.nullcontext else 3
        history = model.fit(Batches(203, workers), epochs=2, verbose=0, validation_data=validation)
        numbers = numbers_of(model, history)
        numbers["evaluated"] = [model.evaluate(validation, steps=steps, verbose=0) for steps in (None, 3)]
        return numbers

    return both(train, make_strategy, num_servers=2)


@case
def bounded_staleness_and_early_end(make_strategy):
    import keras

    x, y = rows(120)
    with make_strategy(max_staleness=2) as strategy:
        model = mlp(strategy.scope, _optimizer("SGD", learning_rate=0.0))
        stop = keras.callbacks.EarlyStopping("loss", min_delta=1e-3, patience=1)
        history = model.fit(x, y, batch_size=8, epochs=20, verbose=0, callbacks=[stop])
        first = {"epochs": len(history.epoch), "loss": history.history["loss"]}
        # Another fit goes on, in rounds of its own.
        again = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return first | {"epochs of the second fit": len(again.epoch)}


@case
def stopped_in_an_epoch_by_the_chief(make_strategy):
    import keras

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if strategy.cluster.is_chief and batch == 2:
                self.model.stop_training = True

    x, y = rows(400)
    with make_strategy() as strategy:
        model = mlp(strategy.scope, _optimizer("SGD", learning_rate=0.01))
        history = model.fit(x, y, batch_size=4, epochs=5, verbose=0, callbacks=[Stop()])
    return {"epochs": len(history.epoch)}


@case
def table_of_ten_million_rows(make_strategy):
    """2.5 GB on the server, which is a thread of worker 0; the other worker must not notice."""
    import resource

    import keras
    import numpy as np

    def peak_bytes():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    rng = np.random.default_rng(2)
    ids = rng.integers(0, 10_000_000, (64, 2)).astype("int32")
    y = rng.normal(size=(64, 1)).astype("float32")
    before = peak_bytes()
    with make_strategy() as strategy, strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((2,), dtype="int32"),
                keras.layers.Embedding(10_000_000, 64, embeddings_initializer="ones"),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.0005), "mse")
        history = model.fit(ids, y, batch_size=8, epochs=3, verbose=0)
    return {"grown": peak_bytes() - before, "loss": history.history["loss"]}


REFUSED = {
    "LossScaleOptimizer": dict(optimizer=lambda k: k.optimizers.LossScaleOptimizer(k.optimizers.SGD())),
    "global_clipnorm=1.0 with max_staleness=0 takes one server": dict(
        optimizer=lambda k: k.optimizers.SGD(global_clipnorm=1.0), num_servers=2, max_staleness=0
    ),
    "does not divide by the 2 workers": dict(fit_options={"batch_size": 15}, max_staleness=0),
    "steps_per_execution is 4": dict(compile_options={"steps_per_execution": 4}),
    "reduction='sum'": dict(loss=lambda k: k.losses.MeanSquaredError(reduction="sum"), max_staleness=0),
    "steps_per_epoch is 3": dict(fit_options={"steps_per_epoch": 3}),
    "so it takes NumPy arrays, arrays of the backend, or a PyDataset, not what TFDatasetAdapter reads": dict(
        x=lambda x, y: _tf_dataset(x, y)
    ),
    "With max_staleness=0 the workers share the rows of each batch": dict(
        x=lambda x, y: _py_dataset(x, y, 4), max_staleness=0
    ),
    "The arrays have no rows": dict(x=lambda x, y: x[:0]),
    "num_batches of the PyDataset is None": dict(x=lambda x, y: _py_dataset(x, y, None)),
    "BackupAndRestore backs up what workers hold": dict(
        callback=lambda trireme, keras: trireme.BackupAndRestore("unused")
    ),
    "SwapEMAWeights swaps averages that workers do not have": dict(
        callback=lambda trireme, keras: keras.callbacks.SwapEMAWeights()
    ),
    "Lamb looks at variables as a whole": dict(
        optimizer=lambda k: k.optimizers.Lamb(), variable_partitioner="two", num_servers=2
    ),
}


def _tf_dataset(x, y):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).batch(16)


def _py_dataset(x, y, num_batches):
    import keras

    class Batches(keras.utils.PyDataset):
        def __getitem__(self, index):
            return x[index::4], y[index::4]

    Batches.num_batches = num_batches
    return Batches()


@case
def refusals(make_strategy):
    """What is refused before anybody talks to a server, with the message."""
    import keras

    import trireme
    from trireme.parameter_server import FixedShardsPartitioner

    os.environ["TRIREME_SERVERS"] = "127.0.0.1:1,127.0.0.1:2"
    messages = {}
    x, y = rows(60)
    for expected, options in REFUSED.items():
        os.environ["TRIREME_SERVERS"] = ",".join(
            f"127.0.0.1:{i + 1}" for i in range(options.get("num_servers", 1))
        )
        partitioner = FixedShardsPartitioner(2) if "variable_partitioner" in options else None
        strategy = trireme.ParameterServerStrategy(options.get("max_staleness"), partitioner)
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
            model.compile(
                options.get("optimizer", lambda k: k.optimizers.SGD())(keras),
                options.get("loss", lambda k: "mse")(keras),
                **options.get("compile_options", {}),
            )
        callbacks = [options["callback"](trireme, keras)] if "callback" in options else None
        data = {"x": options["x"](x, y)} if "x" in options else {"x": x, "y": y, "batch_size": 16}
        try:
            model.fit(**data | options.get("fit_options", {}), verbose=0, callbacks=callbacks)
            messages[expected] = "it was not refused"
        except Exception as error:
            messages[expected] = f"{type(error).__name__}: {error}"
    del os.environ["TRIREME_SERVERS"]
    return messages
