"""Whether a model has one device's numbers: a few steps on one device and on all replicas, side by side.

Every worker computes the steps of one device by itself, with Keras' own methods and whole batches; what counts is what
the chief finds. Then all of them make the same steps together, as `fit` would, and each compares.
"""

import contextlib
import dataclasses

import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from trireme.backends import random_state
from trireme.backends.adapters import choose_source, parts_of
from trireme.backends.adoption import strategy_of
from trireme.backends.agreement import compare_sources
from trireme.backends.gradient_recorder import recording_gradients
from trireme.backends.model_state import broadcast_state, variables_of
from trireme.backends.reasons import is_half_precision, likely_reasons
from trireme.errors import UsageError

# Of the largest value there: rounding in another order is below this, another divisor or other statistics are above.
TOLERANCE = 1e-4
HALF_PRECISION_TOLERANCE = 3e-2
# A gradient that is this small beside the largest is mostly rounding, as is a loss that is this small.
_SMALLEST_PART = 1e-3
KINDS = ("loss", "gradients", "weights", "metrics")


@dataclasses.dataclass(frozen=True)
class Difference:
    """The largest difference between one device and the replicas in one kind of numbers.

    Attributes:
        absolute: the difference itself.
        relative: the difference divided by the largest of one device's numbers of that name.
        where: the name: a variable's path, a metric's name, or the step of a loss.
    """

    absolute: float
    relative: float
    where: str


@dataclasses.dataclass(frozen=True)
class Verification:
    """What `strategy.verify` has found. Printing it gives a table and the verdict.

    Attributes:
        num_replicas: replicas that trained together.
        num_rows: rows of each step's global batch.
        differences: a `Difference` for each of "loss", "gradients", "weights" and "metrics".
        tolerance: relative differences up to this one are rounding.
        verdict: "exact": all within the tolerance; "rounding": the gradients are, and the optimizer enlarged their last
            bits; "different": the replicas train another model than one device.
        reasons: for "different", what in the model is likely to cause it.
    """

    num_replicas: int
    num_rows: tuple[int, ...]
    differences: dict[str, Difference]
    tolerance: float
    verdict: str
    reasons: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether the replicas compute what one device computes, to rounding."""
        return self.verdict != "different"

    def __str__(self) -> str:
        rows = ", ".join(map(str, self.num_rows))
        lines = [f"{self.num_replicas} replicas against one device, batches of {rows} rows:"]
        for kind, difference in self.differences.items():
            lines.append(
                f"  {kind:<10} {difference.relative:8.1e} of the largest ({difference.absolute:.1e})"
                + (f"  {difference.where}" if difference.relative else "")
            )
        lines.append(f"verdict: {_SENTENCES[self.verdict]} (limit: {self.tolerance:g})")
        lines += [f"  - {reason}" for reason in self.reasons]
        return "\n".join(lines)


_SENTENCES = {
    "exact": "the numbers of one device",
    "rounding": "the gradients of one device; the optimizer enlarges their last bits, as it would for any other order",
    "different": "not the numbers of one device",
}


def verify(model, strategy, x, y=None, sample_weight=None, num_steps=3, **options):
    """Returns the `Verification` of `model`; see `Strategy.verify`.

    Args:
        model: a compiled model that `strategy` has adopted.
        strategy: a strategy of several replicas.
        x: see `keras.Model.fit`, as `y` and `sample_weight`.
        num_steps: steps to compare.
        **options: `batch_size` and `class_weight` of `keras.Model.fit`.
    """
    _refuse(model, strategy)
    backend = strategy.backend
    source = choose_source(x, y, sample_weight, shuffle=False, **options)
    if source.is_own:
        raise UsageError(
            "verify was given what distribute_datasets_from_function returns, of which each worker reads a part. "
            "One device must make the same steps: pass the same whole batches on every worker."
        )
    compare_sources(source, backend)
    batches = _batches(source.adapter, num_steps, strategy.num_replicas_in_sync)
    if isinstance(source.adapter, ArrayDataAdapter) and backend.name != "tensorflow":
        # TensorFlow builds by shapes. The others take a batch to build by, for which `fit` draws an order of arrays.
        first = choose_source(x, y, sample_weight, shuffle=True, **options)
    else:
        # Other inputs may be read once only.
        first = choose_source(*parts_of(batches[0]), shuffle=False)
    _build(model, backend, first)
    with _left_as_it_was(model, backend):
        with recording_gradients(model) as recorders:
            # Recorders change nothing in the model, so that one batch may follow another.
            gradients = _in_both_ways(
                model, backend, lambda: _gradients(model, recorders, batches[:: len(batches) - 1 or 1])
            )
        steps = _in_both_ways(model, backend, lambda: _steps(model, batches))
        differences = {
            kind: _difference(backend, kind, *numbers) for kind, numbers in {**steps, **gradients}.items()
        }
    num_rows = tuple(_num_rows(batch) for batch in batches)
    return _judged(model, strategy, num_rows, {kind: differences[kind] for kind in KINDS})


def _refuse(model, strategy):
    if strategy.num_replicas_in_sync == 1:
        raise UsageError(
            "verify compares several replicas with one device, and this run has one replica. Start two: "
            "`trireme run --replicas 2 SCRIPT`."
        )
    if not getattr(model, "compiled", False):
        raise UsageError("verify compares steps of training: call model.compile(optimizer, loss) before it.")
    if strategy_of(model) is not strategy:
        raise UsageError(
            f"verify was given a model of {strategy_of(model)!r}: make or compile it in the scope of {strategy!r}."
        )


def _judged(model, strategy, num_rows, differences):
    tolerance = HALF_PRECISION_TOLERANCE if is_half_precision(model) else TOLERANCE
    # Not `>`: what is NaN in one way only is a difference.
    differing = {kind for kind, found in differences.items() if not found.relative <= tolerance}
    verdict = "different" if differing - {"weights"} else "rounding" if differing else "exact"
    reasons = likely_reasons(model, strategy, differing) if verdict == "different" else []
    return Verification(
        strategy.num_replicas_in_sync, num_rows, differences, tolerance, verdict, tuple(reasons)
    )


def _batches(adapter, num_steps, num_replicas):
    """Returns `num_steps` global batches as NumPy arrays, the last of them with unequal parts for the replicas."""
    batches = [batch for batch, _ in zip(adapter.get_numpy_iterator(), range(num_steps), strict=False)]
    if not batches:
        raise UsageError("verify was given no data: its input has no batches.")
    num_rows = _num_rows(batches[-1])
    if num_rows > 1 and num_rows % num_replicas == 0:
        # A wrong divisor shows where the replicas have unequally many rows.
        batches[-1] = keras.tree.map_structure(lambda leaf: leaf[:-1], batches[-1], none_is_leaf=False)
    return batches


def _num_rows(batch):
    return len(keras.tree.flatten(batch)[0])


def _in_both_ways(model, backend, record):
    """Returns `{kind: (names, numbers of one device, numbers of the replicas)}` from two runs of `record()`."""
    start = _values(_variables(model))
    ways = []
    for way in (backend.alone, contextlib.nullcontext):
        _assign(model, start)
        _forget_functions(model)
        with _random_state_kept(), way():
            ways.append(record())
    _assign(model, start)
    one_device, replicas = ways
    return {
        kind: (
            [name for name, _ in named],
            [value for _, value in named],
            [value for _, value in replicas[kind]],
        )
        for kind, named in one_device.items()
    }


def _gradients(model, recorders, batches):
    gradients = []
    for number, batch in enumerate(batches):
        _step(model, batch)
        gradients += [(f"{path}, batch {number}", value) for path, value in recorders()]
    return {"gradients": gradients}


def _steps(model, batches):
    losses, logged = [], []
    for number, batch in enumerate(batches):
        logs = _step(model, batch)
        for name, value in logs.items():
            (losses if name == "loss" else logged).append((f"{name}, step {number + 1}", np.float64(value)))
    return {"loss": losses, "metrics": logged, "weights": [(v.path, _value(v)) for v in model.weights]}


def _step(model, batch):
    if keras.backend.backend() != "jax":
        # As `fit` would hand them to a step.
        batch = keras.tree.map_structure(keras.ops.convert_to_tensor, batch, none_is_leaf=False)
    x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(batch)
    model.reset_metrics()
    return model.train_on_batch(x, y, sample_weight, return_dict=True)


def _difference(backend, kind, names, one_device, replicas):
    """Returns the largest `Difference` that any worker finds between the chief's numbers of one device and its own."""
    worst = np.zeros(3)
    floor = _floor(kind, one_device)
    for index, (expected, got) in enumerate(zip(one_device, replicas, strict=True)):
        expected = backend.broadcast(np.asarray(expected, np.float64))
        got = np.asarray(got, np.float64)
        # What is NaN both ways is the same.
        apart = np.where(np.isnan(expected) & np.isnan(got), 0, np.abs(got - expected))
        absolute = np.max(apart, initial=0)
        relative = absolute / max(np.max(np.nan_to_num(np.abs(expected)), initial=0), floor)
        if not relative <= worst[1]:
            worst = np.array([absolute, relative, index])
    of_workers = np.stack(backend.all_gather(worst[np.newaxis]))[:, 0]
    absolute, relative, index = of_workers[np.argmax(np.nan_to_num(of_workers[:, 1], nan=np.inf))]
    return Difference(float(absolute), float(relative), names[int(index)] if relative and names else "")


def _floor(kind, values):
    """Returns the size below which numbers of this kind are mostly the rounding of others."""
    if kind in ("loss", "metrics"):
        return _SMALLEST_PART
    largest = max((np.max(np.nan_to_num(np.abs(value)), initial=0) for value in values), default=0)
    return max(_SMALLEST_PART * largest, np.finfo(np.float32).tiny)


def _build(model, backend, source):
    """Creates the variables of `model` as its first `fit` would, with the same random draws."""
    backend.connect(model)
    with backend.calling(model):
        backend.build(model, backend.shard(source))
    unbuilt = [layer.name for layer in model._flatten_layers() if not layer.built]
    if unbuilt:
        raise UsageError(
            f"verify cannot make the weights of the layers {', '.join(unbuilt)} from the data alone, since the model "
            "has a train_step of its own. Call the model once, on a batch of the data, before verify."
        )


@contextlib.contextmanager
def _left_as_it_was(model, backend):
    """Gives all workers the chief's variables meanwhile, and puts everything back afterwards."""
    flags = _flags(model)
    steps_per_execution, model.steps_per_execution = model.steps_per_execution, 1
    before = _values(_variables(model))
    with _random_state_kept():
        broadcast_state(model, backend, always=True)
        try:
            yield
        finally:
            _assign(model, before)
            _forget_functions(model)
            model.steps_per_execution = steps_per_execution
            for name in _flags(model):
                object.__delattr__(model, name)
            for name, value in flags.items():
                object.__setattr__(model, name, value)


def _flags(model):
    return {name: value for name, value in vars(model).items() if name.startswith("_trireme_metrics")}


def _variables(model):
    variables = [*variables_of(model), *model.metrics_variables]
    return list({id(variable): variable for variable in variables}.values())


def _values(variables):
    return [(variable, _value(variable)) for variable in variables]


def _value(variable):
    return np.array(keras.ops.convert_to_numpy(variable))


def _assign(model, values):
    """Gives the variables of `model` their values back; those that a step has made since begin with zeros."""
    for variable, value in values:
        variable.assign(value)
    known = {id(variable) for variable, _ in values}
    for variable in _variables(model):
        if id(variable) not in known:
            variable.assign(np.zeros(variable.shape))


def _forget_functions(model):
    # They were made for the other way.
    model.train_function = model.test_function = model.predict_function = None


@contextlib.contextmanager
def _random_state_kept():
    state, arrays = random_state.everything()
    try:
        yield
    finally:
        random_state.set_everything(state, arrays)
