"""What a backup holds of a training run, taken from Keras' objects and put back into them."""

import functools

import keras
import numpy as np

from trireme.backends import metrics, random_state
from trireme.backends.adapters import ShardedAdapter
from trireme.backends.build import build_model
from trireme.backends.model_state import SEED_STATE, own_seed, variables_of
from trireme.errors import UsageError
from trireme.recovery.snapshot import Snapshot

# What these callbacks decide by. All else in them is the user's choice, or made anew.
_DECIDING = {
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
}


def common_state(model, callbacks):
    """Returns what is the same on all workers, or the chief's business, as `(state, arrays)` of a backup."""
    variables = variables_of(model)
    state = {"variables": [_described(variable) for variable in variables]}
    arrays = {f"variable/{index}": _value(variable) for index, variable in enumerate(variables)}
    state["callbacks"] = {}
    for name, callback, attributes in _deciding(callbacks):
        decided = state["callbacks"][name] = {}
        for attribute in attributes:
            value = getattr(callback, attribute, None)
            if isinstance(value, list):
                decided[attribute] = {"arrays": len(value)}
                arrays |= {f"{name}/{attribute}/{index}": np.asarray(one) for index, one in enumerate(value)}
            else:
                decided[attribute] = value if value is None else _number(value)
    history = model.history
    state["history"] = {
        name: [_number(value) for value in values] for name, values in history.history.items()
    }
    state["epochs"] = list(getattr(history, "epoch", []))
    return state, arrays


def set_variables(model, snapshot, where):
    """Gives the model and its optimizers the values of the backup; `UsageError` if it is of another model."""
    variables = variables_of(model)
    wrong = _differences(snapshot.state["variables"], [_described(variable) for variable in variables])
    if wrong:
        listed = "".join(f"\n  - {line}" for line in wrong[:8])
        raise UsageError(
            f"The newest backup in {where} is of another model or optimizer:{listed}\n"
            "Give another location, or remove that folder to train from the beginning."
        )
    for index, variable in enumerate(variables):
        variable.assign(np.array(snapshot.arrays[f"variable/{index}"]))


def set_callbacks(callbacks, snapshot):
    """Gives the deciding callbacks that run here what they knew."""
    for name, callback, _ in _deciding(callbacks):
        for attribute, value in snapshot.state["callbacks"].get(name, {}).items():
            if isinstance(value, dict):
                value = [
                    np.array(snapshot.arrays[f"{name}/{attribute}/{index}"])
                    for index in range(value["arrays"])
                ]
            setattr(callback, attribute, value)


def set_history(model, snapshot):
    """Lets the history of `fit` begin with the epochs before the backup."""
    model.history.history = {name: list(values) for name, values in snapshot.state["history"].items()}
    model.history.epoch = list(snapshot.state["epochs"])


def own_state(model, position):
    """Returns what each worker has of its own: random streams, the metrics of its rows, its place in the data.

    Args:
        model: the model.
        position: the place, as `(state, arrays)`.
    """
    state, arrays = random_state.everything()
    state["position"] = position[0]
    arrays |= {f"position/{name}": array for name, array in position[1].items()}
    arrays |= {f"metric/{index}": _value(one) for index, one in enumerate(model.metrics_variables)}
    arrays |= {f"seed/{index}": _value(one) for index, one in enumerate(_seeds(model))}
    return Snapshot(0, 0, arrays, state)


def add_parts(parts, state, arrays):
    """Adds `own_state` of every worker, in rank order, to the state and the arrays of a backup."""
    state["workers"] = [part.state for part in parts]
    for rank, part in enumerate(parts):
        arrays |= {f"worker/{rank}/{name}": array for name, array in part.arrays.items()}


def part_of(snapshot, rank):
    """Returns worker `rank`'s `own_state`; the chief's where the backup was made by fewer workers."""
    rank = rank if rank < len(snapshot.state["workers"]) else 0
    prefix = f"worker/{rank}/"
    arrays = {
        name.removeprefix(prefix): array for name, array in snapshot.arrays.items() if name.startswith(prefix)
    }
    return Snapshot(0, 0, arrays, snapshot.state["workers"][rank])


def set_own_state(model, backend, snapshot):
    """Gives this worker its own part of the backup, or what follows from the others' where it had none."""
    rank, num_parts = backend.cluster.rank, len(snapshot.state["workers"])
    mine = part_of(snapshot, rank)
    metrics.make_local(model, backend)
    for index, variable in enumerate(model.metrics_variables):
        variable.assign(_metric(f"metric/{index}", variable, backend, snapshot))
    for index, variable in enumerate(_seeds(model)):
        value = np.array(mine.arrays[f"seed/{index}"])
        is_new = rank >= num_parts and not backend.sees_global_batch
        variable.assign(own_seed(value, rank) if is_new else value)
    random_state.set_everything(mine.state, mine.arrays)
    if rank >= num_parts:
        backend.begin_own_stream()


def let_an_epoch_end_without_steps(model):
    """Lets an epoch that goes on where it ends, which shows too late, have the logs of the steps before.

    Keras takes an epoch's logs from its last step.
    """
    original = model._get_metrics_result_or_logs

    @functools.wraps(original)
    def result_or_logs(logs):
        return original(logs or model.get_metrics_result())

    object.__setattr__(model, "_get_metrics_result_or_logs", result_or_logs)


def build(model, epoch_iterator):
    """Creates what Keras would create in the first step, where it has not yet: only TensorFlow's trainer waits."""
    dataset = getattr(epoch_iterator, "_distributed_dataset", None)
    # Several workers have built it, by the chief's values, before.
    if dataset is not None and not isinstance(epoch_iterator.data_adapter, ShardedAdapter):
        build_model(model, iter([dataset.element_spec]), training=True)


def _metric(name, variable, backend, snapshot):
    """The metric's value for this worker: its own, or for another number of workers a share of the whole."""
    values = [
        np.array(snapshot.arrays[f"worker/{rank}/{name}"]) for rank in range(len(snapshot.state["workers"]))
    ]
    if backend.sees_global_batch:
        return values[0]
    if len(values) == backend.cluster.num_workers:
        return values[backend.cluster.rank]
    if variable.aggregation == "mean":
        return np.mean(values, axis=0)
    if not backend.cluster.is_chief:
        return np.zeros_like(values[0])
    return np.sum(values, axis=0) if variable.aggregation == "sum" else values[0]


def _seeds(model):
    return [variable for variable in model.variables if variable.name == SEED_STATE]


def _value(variable):
    return np.asarray(keras.ops.convert_to_numpy(variable))


def _described(variable):
    return [variable.path, list(variable.shape), keras.backend.standardize_dtype(variable.dtype)]


def _differences(saved, present):
    """Says what is different, by shape and type; names alone may differ, as another start may count otherwise."""
    wrong = []
    if len(saved) != len(present):
        wrong.append(f"the backup has {len(saved)} variables, this model and its optimizer {len(present)}")
    for old, new in zip(saved, present, strict=False):
        if old[1:] != new[1:]:
            wrong.append("{} {} {} in the backup, {} {} {} here".format(*old, *new))
    return wrong


def _deciding(callbacks):
    """Yields each deciding callback with a name that it has in every start of the run, and its attributes."""
    counts = {}
    for callback in callbacks:
        for kind, attributes in _DECIDING.items():
            if isinstance(callback, kind):
                counts[kind] = counts.get(kind, -1) + 1
                yield f"{kind.__name__}/{counts[kind]}", callback, attributes


def _number(value):
    return value if isinstance(value, (bool, int, str)) else float(value)
