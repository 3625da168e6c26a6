"""Metrics of the global batch, from the metric variables that each worker keeps of its own rows.

Metric variables are sums by nature, so adding them over the workers gives what one device would hold. During
an epoch each worker keeps its own; they are added where somebody reads them, outside of the compiled step.
A model remembers which of the two its variables hold, so that nothing is added twice.
"""

import contextlib

import keras
import numpy as np

_ARE_GLOBAL = "_trireme_metrics_are_global"


def global_metrics(model, backend, original):
    """Returns `original()`, Keras' metrics result of `model`, over the rows of all workers."""
    with _holding_global_values(model, backend):
        # A metric may give out its very variable, or memory of it, which holds other values in a moment.
        return keras.tree.map_structure(keras.ops.convert_to_numpy, original())


def mean_logs(logs, backend):
    """Returns the mean over the workers of a flat dict of scalars that no metric stands behind."""
    names = sorted(logs)
    values = np.array([float(keras.ops.convert_to_numpy(logs[name])) for name in names], np.float64)
    means = backend.all_reduce(values) / backend.cluster.num_workers
    return dict(zip(names, means.tolist(), strict=True))


def make_global(model, backend):
    """Leaves the metrics of `model` as one device would: `metric.result()` is that of all rows."""
    if not getattr(model, _ARE_GLOBAL, False):
        _assign(model.metrics_variables, _reduced(model.metrics_variables, backend))
        object.__setattr__(model, _ARE_GLOBAL, True)


def make_local(model, backend):
    """Prepares the metrics of `model` for more rows: from here each worker adds its own."""
    if getattr(model, _ARE_GLOBAL, False):
        object.__setattr__(model, _ARE_GLOBAL, False)
        if not backend.cluster.is_chief:
            _assign(model.metrics_variables, [np.zeros(v.shape) for v in model.metrics_variables])


@contextlib.contextmanager
def _holding_global_values(model, backend):
    variables = model.metrics_variables
    if getattr(model, _ARE_GLOBAL, False) or not variables:
        yield
        return
    own = [keras.ops.convert_to_numpy(variable) for variable in variables]
    _assign(variables, _reduced(variables, backend))
    try:
        yield
    finally:
        _assign(variables, own)


def _reduced(variables, backend):
    """Returns the values one device would hold, by each variable's declared aggregation; one exchange."""
    if not variables:
        return []
    num_workers = backend.cluster.num_workers
    values = []
    for variable in variables:
        value = keras.ops.convert_to_numpy(variable).astype(np.float64)
        if variable.aggregation == "mean":
            value = value / num_workers
        elif variable.aggregation != "sum" and not backend.cluster.is_chief:
            value = np.zeros_like(value)
        values.append(value)
    total = backend.all_reduce(np.concatenate([value.reshape(-1) for value in values]))
    ends = np.cumsum([value.size for value in values])
    return [
        total[end - value.size : end].reshape(value.shape) for end, value in zip(ends, values, strict=True)
    ]


def _assign(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(np.asarray(value).astype(keras.backend.standardize_dtype(variable.dtype)))
