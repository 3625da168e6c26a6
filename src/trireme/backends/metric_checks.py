"""Whether a user's metric can be right when each worker updates it with rows of its own.

Metric variables with `aggregation="sum"`, which is Keras' default, are added over the workers. That is right where an
update adds something to a variable that does not depend on what the variable holds. A running maximum, an average
that forgets, or "the last batch" are no such sums, and nothing declares them: so the first update with rows is made
again, aside, from other starting values. Keras' own metrics are sums and are not tried.
"""

import functools

import keras
import numpy as np
from keras.src import tree

from trireme.backends.step import current_step
from trireme.errors import UsageError

_WATCHED = "_trireme_mistakes"
# Of the difference between two starting values, how much may be lost to rounding.
_TOLERATED = 1 / 256
# Attributes in which a metric may keep what it has seen; `bool` is a kind of `int`, and mostly says "built".
_PLAIN_STATE = (list, dict, set, int, float, np.ndarray)


def watch(model, backend):
    """Tries the metrics of `model` that Keras does not bring at their first update. Harmless to repeat."""
    for metric in users_metrics(model):
        if _WATCHED not in vars(metric):
            object.__setattr__(metric, _WATCHED, [])
            _watch_updates(metric, backend)
            _watch_resets(metric, backend)


def refuse_mistakes(model):
    """Raises what `watch` has found, before numbers of the metric are shown.

    Raises:
        UsageError: a metric's state is no sum.
    """
    for metric in users_metrics(model):
        if mistakes := getattr(metric, _WATCHED, None):
            raise UsageError(mistakes[0])


def users_metrics(model):
    """Returns the metrics of `model` that are of classes of the user's."""
    found = []
    for metric in model.metrics:
        found.append(metric)
        found += getattr(metric, "metrics", [])
        for name in ("_user_metrics", "_user_weighted_metrics"):
            found += tree.flatten(getattr(metric, name, None) or [])
    metrics = {id(metric): metric for metric in found if isinstance(metric, keras.metrics.Metric)}
    return [metric for metric in metrics.values() if not type(metric).__module__.startswith("keras.")]


def _watch_updates(metric, backend):
    original = metric.update_state
    try_once = backend.trying_once()
    is_aside = False

    @functools.wraps(original)
    def update_state(*args, **kwargs):
        nonlocal is_aside
        if is_aside or current_step() is None:
            return original(*args, **kwargs)
        plain_state = _plain_state(metric)
        variables = list(metric.variables)
        before = [keras.ops.copy(variable.value) for variable in variables]
        result = original(*args, **kwargs)
        if _plain_state(metric) != plain_state:
            metric._trireme_mistakes.append(_plain_state_mistake(metric))

        def try_aside():
            nonlocal is_aside
            is_aside = True
            try:
                return _trial(variables, before, lambda: original(*args, **kwargs))
            finally:
                is_aside = False

        if variables:
            try_once(
                try_aside, lambda *trial: metric._trireme_mistakes.extend(_mistakes(metric, variables, trial))
            )
        return result

    object.__setattr__(metric, "update_state", update_state)


def _watch_resets(metric, backend):
    original = metric.reset_state

    @functools.wraps(original)
    def reset_state():
        original()
        _keep_start_once(metric, backend)

    object.__setattr__(metric, "reset_state", reset_state)
    _keep_start_once(metric, backend)


def _keep_start_once(metric, backend):
    """Lets a sum over the workers count what a variable starts with once: on the chief."""
    if not backend.cluster.is_chief:
        for variable in metric.variables:
            if variable.aggregation == "sum":
                variable.assign(keras.ops.zeros(variable.shape, variable.dtype))


def _trial(variables, before, update):
    """Returns tensors: what each variable held and holds, then two other starting values and what comes of them."""
    tensors = [*before, *(keras.ops.convert_to_tensor(variable) for variable in variables)]
    for sign in (1, -1):
        starts = [
            value + keras.ops.cast(sign * _distance(variable), value.dtype)
            if variable.aggregation == "sum" and variable.dtype != "bool"
            else value
            for variable, value in zip(variables, before, strict=True)
        ]
        with keras.StatelessScope(state_mapping=list(zip(variables, starts, strict=True))) as scope:
            update()
        ends = [scope.get_current_value(variable) for variable in variables]
        tensors += starts
        tensors += [start if end is None else end for start, end in zip(starts, ends, strict=True)]
    return [
        keras.ops.cast(t, "float64" if keras.backend.is_float_dtype(t.dtype) else "int64") for t in tensors
    ]


def _distance(variable):
    """Returns how far other starting values lie from the true one: further than one batch's update reaches."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    if dtype in ("float16", "int16", "uint16"):
        return 2**10
    return 2**4 if dtype in ("int8", "uint8") else 2**20


def _mistakes(metric, variables, trial):
    """Returns sentences on the variables that are declared sums and are none."""
    values = _in_parts(trial, len(variables))
    mistakes = []
    for index, variable in enumerate(variables):
        if variable.aggregation == "sum" and _is_no_sum(variable, *(part[index] for part in values)):
            mistakes.append(
                f"The metric {metric.name!r} ({type(metric).__name__}) cannot be used with several replicas: its "
                f"variable {variable.name!r} has aggregation='sum', but an update does not add to it: what it adds "
                "depends on what the variable holds, as in a running maximum. Each worker updates the metric with "
                "its own rows, so the variables of the workers cannot be put together. Write the metric with sums "
                "(a count, a total), declare a mean over the rows with add_variable(..., aggregation='mean'), or "
                "compute it from model.predict."
            )
    return mistakes


def _in_parts(tensors, length):
    return [tensors[start : start + length] for start in range(0, len(tensors), length)]


def _is_no_sum(variable, before, after, *others):
    if variable.dtype == "bool" or not np.all(np.isfinite(before)):
        return True
    # What the rows make infinite says nothing.
    told = np.isfinite(after)
    dtype = keras.backend.standardize_dtype(variable.dtype)
    epsilon = _epsilon(dtype) if keras.backend.is_float_dtype(dtype) else 0
    tolerance = 8 * epsilon * (_distance(variable) + np.abs(after)) + (
        _distance(variable) * _TOLERATED if epsilon else 0
    )
    for start, end in _in_parts(others, 2):
        with np.errstate(invalid="ignore"):
            is_sum = np.abs((end - start) - (after - before)) <= tolerance
        if not np.all(is_sum | ~told):
            return True
    return False


def _epsilon(dtype):
    # NumPy has no bfloat16.
    return 2**-7 if dtype == "bfloat16" else np.finfo(dtype).eps


def _plain_state(metric):
    """Returns what tells whether attributes that are no variables have changed."""
    return {
        name: (id(value), len(value) if hasattr(value, "__len__") else None)
        for name, value in vars(metric).items()
        if isinstance(value, _PLAIN_STATE) and not isinstance(value, bool) and not name.startswith("_trireme")
    }


def _plain_state_mistake(metric):
    return (
        f"The metric {metric.name!r} ({type(metric).__name__}) cannot be used with several replicas: its update_state "
        "changes Python attributes, and only Keras variables, made with add_variable, can be put together from the "
        "workers. Write its state as variables that are sums, or compute it from model.predict."
    )
