"""What PyTorch workers do with gradients, state and rows that have no counterpart on one device."""

import functools

import numpy as np
import pytest

from tests.once import once
from trireme.testing import run_workers

PROGRAMS = {}
WAYS = {"shared memory": {}, "gloo": {"TRIREME_COLLECTIVES": "runtime"}}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def run_programs(names):
    """Runs programs in a worker; a failed one has its traceback instead of its result."""
    import traceback

    import keras

    import trireme

    strategy = trireme.MirroredStrategy()
    results = {}
    for name in names:
        keras.utils.set_random_seed(3)
        try:
            results[name] = PROGRAMS[name](strategy)
        except Exception:
            results[name] = traceback.format_exc()
    return results


@once
def all_results(way):
    # Compiling takes long, and the way of the bytes is nothing to it.
    names = [name for name in PROGRAMS if way == "gloo" or name != "compiled"]
    return run_workers(run_programs, 2, names, backend="torch", env=WAYS[way], timeout_s=280)


@once
def plain_results():
    return run_workers(run_programs, 1, ["two_optimizers", "reshaped_rows"], backend="torch", timeout_s=250)


def result(results, name):
    for rank, each in enumerate(results):
        if isinstance(each[name], str):
            pytest.fail(f"worker {rank}:\n{each[name]}")
    return [each[name] for each in results]


@pytest.fixture(params=WAYS)
def results(request):
    """Returns a function from a program's name to its results on the two workers."""
    return functools.partial(result, all_results(request.param))


def watched_sums(strategy):
    """Records every sum of tensors: whether a backward pass was going on when it began."""
    import torch

    collectives, sums = strategy.backend.collectives, []
    original = type(collectives).start_sum

    def start_sum(tensors, total, weight):
        sums.append(torch._C._current_graph_task_id() != -1)
        return original(collectives, tensors, total, weight)

    collectives.start_sum = start_sum
    return sums


@program
def overlap(strategy):
    import keras
    import numpy as np

    with strategy.scope():
        layers = [keras.layers.Dense(600) for _ in range(3)]
        model = keras.Sequential([keras.layers.Input((600,)), *layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    sums = watched_sums(strategy)
    ends = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(len(sums)))
    model.fit(np.ones((12, 600)), np.ones((12, 1)), batch_size=4, verbose=0, callbacks=[callback])
    del strategy.backend.collectives.start_sum
    return [sums[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]


def test_gradients_travel_while_the_backward_pass_runs():
    first, *others = result(all_results("gloo"), "overlap")[0]
    # Which gradients an optimizer will want is known from the first step on.
    assert len(first) >= 2 and not any(first)
    assert len(others) == 2
    for step in others:
        assert len(step) == len(first) and any(step)


def test_where_nothing_is_gained_by_it_gradients_wait_for_the_end_of_the_backward_pass():
    for step in result(all_results("shared memory"), "overlap")[0]:
        assert len(step) == 1 and not any(step)


@program
def gradients_that_some_have(strategy):
    """Each worker's rows go through another layer; a third layer is used by nobody."""
    import keras
    import numpy as np

    given = []

    class Spy(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            given.append([gradient is not None for gradient in grads])
            return super().apply(grads, trainable_variables)

    class ByData(keras.Model):
        def __init__(self):
            super().__init__()
            layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(3)]
            self.for_positive, self.for_negative, self.for_nothing = layers
            for layer in layers:
                layer.build((None, 1))
            self.built = True

        def call(self, x):
            if x.is_meta or float(x.sum()) > 0:
                return self.for_positive(x)
            return self.for_negative(x)

    with strategy.scope():
        model = ByData()
        model.compile(Spy(0.1), "mse")
    x = np.tile(np.float32([1, 1, -1, -1]), 3)[:, None]
    model.fit(x, np.zeros((12, 1)), batch_size=4, shuffle=False, verbose=0)
    return {"kernels": [float(kernel.ravel()[0]) for kernel in model.get_weights()], "given": given}


def test_a_variable_that_some_workers_do_not_use_is_averaged_and_one_that_nobody_uses_has_no_gradient(
    results,
):
    for worker in results("gradients_that_some_have"):
        # In each step: 0.1 * (half of the rows) * 2 * kernel.
        assert worker["kernels"] == pytest.approx([0.9**3, 0.9**3, 1.0])
        assert worker["given"] == [[True, True, False]] * 3


@program
def changed_after_the_backward_pass(strategy):
    """A step of the user's own that halves large gradients in place, which only worker 0 has."""
    import keras
    import numpy as np
    import torch

    class Halving(keras.Sequential):
        def train_step(self, data):
            x, y = data
            self.zero_grad()
            loss = keras.ops.mean(keras.ops.square(self(x, training=True) - y))
            loss.backward()
            [variable] = self.trainable_weights
            with torch.no_grad():
                if variable.value.grad.abs().max() > 1:
                    variable.value.grad.mul_(0.5)
                self.optimizer.apply([variable.value.grad], [variable])
            return {"loss": loss}

    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = Halving([keras.layers.Input((1,)), layer])
        model.compile(keras.optimizers.SGD(0.01))
    x = np.tile(np.float32([3, 3, 0.5, 0.5]), 4)[:, None]
    model.fit(x, np.zeros((16, 1)), batch_size=4, shuffle=False, verbose=0)
    return float(model.get_weights()[0].ravel()[0])


def test_gradients_changed_on_one_worker_are_exchanged_as_changed(results):
    kernel = 1.0
    for _ in range(4):
        large, small = 2 * kernel * 9, 2 * kernel * 0.25
        kernel -= 0.01 * (large / 2 + small) / 2
    assert results("changed_after_the_backward_pass") == pytest.approx([kernel, kernel])


@program
def two_optimizers(strategy):
    """An adversarial pair whose discriminator takes two updates per update of the generator."""
    import keras
    import numpy as np
    import torch

    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.generator = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2, "tanh")])
            self.discriminator = keras.Sequential(
                [keras.layers.Input((2,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
            )
            self.built = True

        def compile(self, discriminator_optimizer, generator_optimizer):
            super().compile()
            self.discriminator_optimizer = discriminator_optimizer
            self.generator_optimizer = generator_optimizer

        def train_step(self, data):
            real, noise = data
            for _ in range(2):
                self.zero_grad()
                difference = self.discriminator(self.generator(noise)) - self.discriminator(real)
                self._update(keras.ops.mean(keras.ops.tanh(difference)), "discriminator")
            self.zero_grad()
            self._update(
                keras.ops.mean(keras.ops.square(self.discriminator(self.generator(noise)))), "generator"
            )
            return {}

        def _update(self, loss, name):
            loss.backward()
            weights = getattr(self, name).trainable_weights
            with torch.no_grad():
                getattr(self, f"{name}_optimizer").apply([w.value.grad for w in weights], weights)

    with strategy.scope():
        model = Pair()
        model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1))
    rng = np.random.default_rng(0)
    sums = watched_sums(strategy) if strategy.num_replicas_in_sync > 1 else []
    model.fit(rng.normal(size=(22, 2)), rng.normal(size=(22, 2)), batch_size=8, shuffle=False, verbose=0)
    if sums:
        del strategy.backend.collectives.start_sum
    return {"weights": [weight.tolist() for weight in model.get_weights()], "sums": len(sums)}


def test_two_optimizers_give_the_numbers_of_one_device_and_exchange_nothing_in_vain(results):
    [plain] = result(plain_results(), "two_optimizers")
    for worker in results("two_optimizers"):
        for weight, expected in zip(worker["weights"], plain["weights"], strict=True):
            np.testing.assert_allclose(weight, expected, 1e-5, 1e-6)
        assert worker["sums"] == 3 * 3


@program
def reshaped_rows(strategy):
    """Batches of one row among two workers, and a layer that no empty batch could pass."""
    import keras
    import numpy as np

    class Rows(keras.layers.Layer):
        def call(self, x):
            return keras.ops.reshape(x, (x.shape[0], -1))

        def compute_output_shape(self, input_shape):
            return (input_shape[0], 4)

    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((2, 2)), Rows(), keras.layers.Dense(1)])
        model.compile("adam", keras.losses.MeanSquaredError(reduction="sum"), metrics=["mae"])
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 2, 2)), rng.normal(size=(5, 1))
    history = model.fit(x, y, batch_size=2, epochs=2, verbose=0)
    return {
        **history.history,
        "weights": model.get_weights()[0].tolist(),
        "evaluate": model.evaluate(x, y, batch_size=1, verbose=0),
        "predict": model.predict(x, batch_size=1, verbose=0).tolist(),
    }


def test_a_worker_without_rows_adds_nothing(results):
    [plain] = result(plain_results(), "reshaped_rows")
    for worker in results("reshaped_rows"):
        for name, value in plain.items():
            np.testing.assert_allclose(worker[name], value, 1e-5, 1e-6, err_msg=name)


@program
def sparse_gradients(strategy):
    """A wrapped PyTorch module whose gradients are sparse, and the same one with dense gradients."""
    import keras
    import numpy as np
    import torch

    tables = []
    for is_sparse in (True, False):
        torch.manual_seed(0)
        with strategy.scope():
            embedding = keras.layers.TorchModuleWrapper(torch.nn.Embedding(6, 2, sparse=is_sparse))
            model = keras.Sequential([keras.layers.Input((3,), dtype="int32"), embedding])
            model.compile("sgd", "mse")
        ids = np.arange(12).reshape(4, 3) % 5
        model.fit(ids, np.zeros((4, 3, 2)), batch_size=4, epochs=3, shuffle=False, verbose=0)
        tables.append(model.get_weights()[0].tolist())
    return tables


def test_sparse_gradients_are_summed(results):
    for sparse, dense in results("sparse_gradients"):
        np.testing.assert_allclose(sparse, dense, 1e-6)


@program
def statistics(strategy):
    """Moving statistics of Keras' batch normalisation and of a wrapped PyTorch one."""
    import keras
    import numpy as np
    import torch

    module = torch.nn.BatchNorm1d(1, momentum=1.0)
    with strategy.scope():
        keras_layer = keras.layers.BatchNormalization(momentum=0.0)
        wrapped = keras.layers.TorchModuleWrapper(module, output_shape=(None, 1))
        inputs = keras.Input((1,))
        model = keras.Model(inputs, [keras_layer(inputs), wrapped(inputs)])
        model.compile("sgd", ["mse", "mse"])
    x = np.repeat(np.float32([0, 10]), 4)[:, None] + np.tile(np.float32([-1, 1]), 4)[:, None]
    model.fit(x, [x, x], batch_size=8, shuffle=False, verbose=0)
    return {
        "keras": [float(keras_layer.moving_mean[0]), float(keras_layer.moving_variance[0])],
        "wrapped": [float(module.running_mean[0]), float(module.running_var[0])],
    }


def test_moving_statistics_are_the_mean_over_the_workers(results):
    for worker in results("statistics"):
        assert worker["keras"] == pytest.approx([5.0, 1.0])
        # PyTorch's moving variance is the unbiased one.
        assert worker["wrapped"] == pytest.approx([5.0, 4 / 3])


@program
def overflow_on_one_worker(strategy):
    import keras
    import numpy as np

    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype="mixed_float16")
        model = keras.Sequential([keras.layers.Input((1,)), layer])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**15)
        model.compile(optimizer, keras.losses.MeanAbsoluteError(dtype="float32"))
    x = np.float32([1, 1, 1, 60000])[:, None]
    model.fit(x, np.zeros((4, 1)), batch_size=4, shuffle=False, verbose=0)
    return [float(model.get_weights()[0].ravel()[0]), float(optimizer.dynamic_scale)]


def test_an_overflow_on_one_worker_skips_the_step_on_all(results):
    assert results("overflow_on_one_worker") == [[1.0, 2.0**14]] * 2


@program
def half_precision_sums(strategy):
    import torch

    backend = strategy.backend
    values = torch.tensor([[256.0, 1.0][backend.cluster.rank]] * 2, dtype=torch.bfloat16)
    total = torch.empty(2)
    backend.collectives.finish(backend.collectives.start_sum([values], total, 1.0))
    return total.tolist()


def test_bfloat16_is_summed_as_float32(results):
    # bfloat16 has no 257.
    assert results("half_precision_sums") == [[257.0, 257.0]] * 2


@program
def compiled(strategy):
    """`jit_compile=True`, with a compiler that takes the steps apart as always and generates no code."""
    import functools

    import keras
    import numpy as np
    import torch

    num_graphs = []

    def compiler(graph, example_inputs):
        num_graphs.append(1)
        return graph.forward

    def numbers(jit_compile):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
            model = keras.Sequential([keras.layers.Input((2,)), *layers])
            model.compile("adam", "mse", metrics=["mae"], jit_compile=jit_compile)
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(14, 2)), rng.normal(size=(14, 1))
        history = model.fit(x, y, batch_size=4, epochs=2, verbose=0)
        return {
            **history.history,
            "weights": model.get_weights()[0].tolist(),
            "evaluate": model.evaluate(x, y, verbose=0),
            "predict": model.predict(x, verbose=0).tolist(),
        }

    original = torch.compile
    torch.compile = functools.partial(original, backend=compiler)
    try:
        return {"eager": numbers(False), "compiled": numbers(True), "graphs": len(num_graphs)}
    finally:
        torch.compile = original


def test_compiled_steps_give_the_numbers_of_eager_ones():
    for worker in result(all_results("gloo"), "compiled"):
        assert worker["graphs"] > 0
        for name, value in worker["eager"].items():
            np.testing.assert_allclose(worker["compiled"][name], value, 1e-5, 1e-6, err_msg=name)
