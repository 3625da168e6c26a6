"""What Keras has besides plain training, with the numbers of one device; see `cases.py`."""

import functools

from tests.contract.adversarial_steps import descend, make_pair_class
from tests.contract.cases import CASES, case, kernel_and_loss, line, mlp, numbers_of, rows

# Gradient accumulation.


@case
def accumulated_by_hand(strategy):
    import numpy as np

    x, y = np.ones((32, 1), "float32"), np.arange(32, dtype="float32")[:, None]
    model = line(strategy, gradient_accumulation_steps=4)
    return kernel_and_loss(model, model.fit(x, y, batch_size=8, shuffle=False, verbose=0))


def _accumulated(optimizer_options, strategy):
    """Updates in the middle of an epoch and of a batch's rows: micro-batches of 16, 16 and 11 rows."""
    import keras

    x, y = rows(43)
    model = mlp(strategy, keras.optimizers.Adam(0.02, gradient_accumulation_steps=2, **optimizer_options))
    first = model.fit(x, y, batch_size=16, epochs=1, verbose=0)
    held = [variable.numpy().copy() for variable in model.optimizer.variables]
    second = model.fit(x[:17], y[:17], batch_size=16, epochs=3, verbose=0)
    on_batches = [model.train_on_batch(x[start : start + 5], y[start : start + 5]) for start in (0, 5, 10)]
    return {
        **numbers_of(model, second),
        "first": first.history["loss"],
        "on batches": on_batches,
        **{f"held {index}": value for index, value in enumerate(held)},
    }


for _name, _options in {
    "accumulated": {},
    "accumulated_and_clipped": {"global_clipnorm": 0.2},
}.items():
    CASES[_name] = functools.partial(_accumulated, _options)


# Batch normalization with the statistics of all rows.


def synchronised():
    """Returns a strategy of the run's replicas that synchronises batch normalization."""
    import trireme

    return trireme.MultiWorkerMirroredStrategy(sync_batch_norm=True)


@case
def batch_norm_by_hand(strategy):
    import keras
    import numpy as np

    x = np.repeat(np.float32([0, 10]), 4)[:, None]
    with synchronised().scope():
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.BatchNormalization(momentum=0.0)])
        model.compile("sgd", "mse")
    model.fit(x, x, batch_size=8, shuffle=False, verbose=0)
    mean, variance = model.get_weights()[2:]
    return {"mean": mean, "variance": variance}


@case
def synchronised_batch_norm(strategy):
    """Uneven parts, a last batch of one row, several axes, a frozen layer and one that renormalises."""
    import keras

    x, y = rows(33, 12)
    frozen = keras.layers.BatchNormalization(trainable=False)
    with synchronised().scope():
        model = keras.Sequential(
            [
                keras.layers.Input((12,)),
                keras.layers.Reshape((3, 4)),
                keras.layers.Dense(4, "tanh"),
                keras.layers.BatchNormalization(momentum=0.5),
                frozen,
                keras.layers.Flatten(),
                keras.layers.BatchNormalization(renorm=True, momentum=0.8),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return numbers_of(model, model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), verbose=0))


@case
def synchronised_batch_norm_with_masks(strategy):
    import keras
    import numpy as np

    rng = np.random.default_rng(2)
    x = rng.normal(size=(22, 5, 3)).astype("float32")
    x[np.arange(5) >= np.sort(rng.integers(1, 6, size=22))[:, None]] = 0
    with synchronised().scope():
        model = keras.Sequential(
            [
                keras.layers.Input((5, 3)),
                keras.layers.Masking(),
                # A bias before a normalization has no gradient but rounding.
                keras.layers.Dense(4, use_bias=False),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.LSTM(3),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
    history = model.fit(x, x[:, 0, :1], batch_size=8, epochs=2, shuffle=False, verbose=0)
    return numbers_of(model, history)


@case
def local_batch_norm(strategy):
    """Without synchronisation: moving statistics are the mean of those of the replicas, on all of them."""
    import keras
    import numpy as np

    x = np.repeat(np.float32([0, 10]), 4)[:, None]
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.BatchNormalization(momentum=0.0)])
        model.compile("sgd", "mse")
    model.fit(np.concatenate([x, x[-1:]]), np.ones((9, 1)), batch_size=8, shuffle=False, verbose=0)
    return numbers_of(model)


# Metrics of the user's own.


def _own_metric(aggregation="sum", dtype=None, start="zeros", update=None):
    """Returns a metric of one variable, which becomes `update(variable, errors)`."""
    import keras

    class Own(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="own")
            self.state = self.add_variable((), start, dtype, aggregation, name="state")

        def update_state(self, y_true, y_pred, sample_weight=None):
            errors = keras.ops.abs(keras.ops.convert_to_tensor(y_true) - y_pred)
            self.state.assign(update(self.state, errors))

        def reset_state(self):
            self.state.assign(1.0 if start == "ones" else 0)

        def result(self):
            return keras.ops.cast(self.state, "float32") + 0.0

    return Own()


@case
def metrics_of_several_aggregations(strategy):
    import keras

    ops = keras.ops
    made = {
        "integer": _own_metric(
            "sum", "int32", update=lambda state, e: state + ops.cast(ops.sum(e > 0.5), "int32")
        ),
        "start": _own_metric("sum", start="ones", update=lambda state, e: state + ops.sum(e)),
        "forgetful": _own_metric("mean", update=lambda state, e: 0.8 * state + 0.2 * ops.mean(e)),
        "steps": _own_metric("mean", "int32", update=lambda state, e: state + 1),
        "equal": _own_metric("none", "int32", update=lambda state, e: state + 1),
    }
    for name, metric in made.items():
        metric.name = name
    x, y = rows(29)
    model = mlp(strategy, metrics=list(made.values()))
    history = model.fit(x, y, batch_size=8, epochs=2, validation_data=(x[:9], y[:9]), verbose=0)
    numbers = numbers_of(model, history)
    return {**numbers, "batch": model.train_on_batch(x[:5], y[:5]), "test": model.test_on_batch(x[:1], y[:1])}


# Losses, weights, layers.


@case
def functional_losses(strategy):
    import keras

    def of_each_row(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)

    def of_all_rows(y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred))

    x, y = rows(27)
    with strategy.scope():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(6, "tanh")(inputs)
        outputs = [keras.layers.Dense(1, name=name)(hidden) for name in "abc"]
        model = keras.Model(inputs, outputs)
        losses = [of_each_row, of_all_rows, keras.losses.log_cosh]
        model.compile(keras.optimizers.SGD(0.05), losses, loss_weights=[1.0, 0.5, 2.0])
    return numbers_of(model, model.fit(x, [y, y, y], batch_size=8, epochs=2, verbose=0))


@case
def loaded_weights_and_lora(strategy):
    import os
    import tempfile

    x, y = rows(26)
    model = mlp(strategy, "adam")
    model.fit(x, y, batch_size=8, verbose=0)
    again = mlp(strategy, "adam")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.weights.h5")
        model.save_weights(path)
        again.load_weights(path)
    again.layers[0].enable_lora(2)
    again.compile("adam", "mse")
    history = again.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return {**numbers_of(again, history), "predict": again.predict(x, verbose=0)}


@case
def task_of_backbone_and_preprocessor(strategy):
    """A model whose own `fit` and `evaluate` prepare what Keras' are given, as task models of KerasHub do."""
    import keras
    import tensorflow as tf

    def prepared(x, y, sample_weight, batch_size):
        if isinstance(x, tf.data.Dataset):
            dataset = x
        else:
            parts = tuple(part for part in (x, y, sample_weight) if part is not None)
            dataset = tf.data.Dataset.from_tensor_slices(parts).batch(batch_size)
        return dataset.map(lambda x, *rest: (tf.cast(x, tf.float32) / 10.0, *rest))

    class Task(keras.Model):
        def __init__(self, backbone, **kwargs):
            inputs = backbone.input
            super().__init__(inputs, keras.layers.Dense(1, name="head")(backbone(inputs)), **kwargs)
            self.backbone = backbone

        def fit(self, x=None, y=None, batch_size=None, sample_weight=None, validation_data=None, **kwargs):
            if validation_data is not None:
                validation_data = prepared(*validation_data, None, batch_size)
            dataset = prepared(x, y, sample_weight, batch_size)
            return super().fit(x=dataset, validation_data=validation_data, **kwargs)

        def evaluate(self, x=None, y=None, batch_size=None, **kwargs):
            if kwargs.get("_use_cached_eval_dataset"):
                return super().evaluate(x=None, **kwargs)
            return super().evaluate(x=prepared(x, y, None, batch_size), **kwargs)

    x, y = rows(29)
    with strategy.scope():
        inputs = keras.Input((4,))
        backbone = keras.Model(inputs, keras.layers.Dense(6, "tanh")(inputs), name="backbone")
        task = Task(backbone)
        task.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    history = task.fit(x * 10, y, batch_size=8, epochs=2, validation_data=(x[:9] * 10, y[:9]), verbose=0)
    return {**numbers_of(task, history), "evaluate": task.evaluate(x * 10, y, batch_size=8, verbose=0)}


@case
def two_optimizers_against_each_other(strategy):
    import keras
    import numpy as np

    rng = np.random.default_rng(4)
    noise, real = rng.normal(size=(21, 3)).astype("float32"), rng.normal(size=(21, 2)).astype("float32")
    with strategy.scope():
        model = make_pair_class()()
        model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1, momentum=0.5))
        model(noise[:1])
    history = model.fit(noise, real, batch_size=8, epochs=2, verbose=0)
    return numbers_of(model, history)


def _loop_of_the_users_own(is_compiled, strategy):
    """Before any `fit`, each worker with its own part of each batch; the optimizer is no attribute of anything."""
    import keras

    if keras.backend.backend() == "jax":
        return {}
    x, y = rows(24)
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
        )
    optimizer = keras.optimizers.Adam(0.05, global_clipnorm=0.5)

    def step(x, y):
        descend(model.trainable_weights, optimizer, lambda: keras.losses.MeanSquaredError()(y, model(x)))

    if is_compiled and keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        step = tf.function(step)
    rank, size = strategy.cluster.rank, 12 // strategy.cluster.num_workers
    for start in (0, 12, 0):
        mine = slice(start + rank * size, start + (rank + 1) * size)
        step(keras.ops.convert_to_tensor(x[mine]), keras.ops.convert_to_tensor(y[mine]))
    model.compile(optimizer, "mse")
    return numbers_of(model, model.fit(x, y, batch_size=10, epochs=2, verbose=0))


CASES["loop_of_the_users_own"] = functools.partial(_loop_of_the_users_own, False)
CASES["compiled_loop_of_the_users_own"] = functools.partial(_loop_of_the_users_own, True)


# What a user can check by himself.


@case
def verified(strategy):
    """A model trains on after `verify` as if there had been none."""
    import keras

    x, y = rows(37)
    model = mlp(strategy, "adam")
    if strategy.num_replicas_in_sync > 1:
        report = strategy.verify(model, (x, y), batch_size=12)
        assert report.verdict == "exact", str(report)
        assert set(report.differences) == {"loss", "gradients", "weights", "metrics"}
        assert report.num_rows == (12, 12, 11)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return {**numbers_of(model, history), "steps": keras.ops.cast(model.optimizer.iterations, "int32")}


@case
def one_variable_eagerly(strategy):
    """One tensor in each exchange, which TensorFlow hands back in another form than several."""
    import keras
    import numpy as np

    x, y = np.ones((19, 1), "float32"), np.arange(19, dtype="float32")[:, None]
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    return numbers_of(model, model.fit(x, y, batch_size=8, verbose=0))
