"""Metrics of the global batch, from the metric variables that each worker keeps of its own rows.

Metric variables are sums by nature, so adding them over the workers gives what one device would hold. During
an epoch each worker keeps its own; they are added where somebody reads them, outside of the compiled step.
A model remembers which of the two its variables hold, so that nothing is added twice.

Variables with `aggregation="mean"` hold the mean over all rows at any time: each step exchanges what it changes in
them, like the state of layers. Those with any other aggregation must be equal on all workers by themselves.
"""

import contextlib

import keras
import numpy as np

from trireme.backends import metric_checks
from trireme.errors import UsageError

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
        _assign(model.metrics_variables, _reduced(model, backend))
        object.__setattr__(model, _ARE_GLOBAL, True)


def make_local(model, backend):
    """Prepares the metrics of `model` for more rows: from here each worker adds its own."""
    if getattr(model, _ARE_GLOBAL, False):
        object.__setattr__(model, _ARE_GLOBAL, False)
        if not backend.cluster.is_chief:
            sums = [variable for variable in model.metrics_variables if variable.aggregation == "sum"]
            _assign(sums, [np.zeros(variable.shape) for variable in sums])


def means_of(model):
    """Returns the metric variables of `model` that hold means over the rows."""
    return [variable for variable in model.metrics_variables if variable.aggregation == "mean"]


@contextlib.contextmanager
def _holding_global_values(model, backend):
    variables = model.metrics_variables
    if getattr(model, _ARE_GLOBAL, False) or not variables:
        yield
        return
    own = [keras.ops.convert_to_numpy(variable) for variable in variables]
    _assign(variables, _reduced(model, backend))
    try:
        yield
    finally:
        _assign(variables, own)


def _reduced(model, backend):
    """Returns the values one device would hold, by each variable's declared aggregation; one exchange.

    Raises:
        UsageError: a variable is declared a sum and is none, or is none that is put together and differs.
    """
    metric_checks.refuse_mistakes(model)
    variables = model.metrics_variables
    if not variables:
        return []
    own = [keras.ops.convert_to_numpy(variable).astype(np.float64) for variable in variables]
    are_added = [variable.aggregation == "sum" or backend.cluster.is_chief for variable in variables]
    parts = [
        value if is_added else np.zeros_like(value) for value, is_added in zip(own, are_added, strict=True)
    ]
    total = backend.all_reduce(np.concatenate([part.reshape(-1) for part in parts]))
    ends = np.cumsum([value.size for value in own])
    values = [
        total[end - value.size : end].reshape(value.shape) for end, value in zip(ends, own, strict=True)
    ]
    _refuse_differing([v for v in variables if v.aggregation not in ("sum", "mean")], backend)
    return values


def _refuse_differing(variables, backend):
    """Refuses variables that are not put together and are not the same on every worker by themselves."""
    if not variables:
        return
    own = [keras.ops.convert_to_numpy(variable).astype(np.float64).reshape(-1) for variable in variables]
    of_workers = np.stack(backend.all_gather(np.concatenate(own)[np.newaxis]))[:, 0]
    differs = np.any((of_workers != of_workers[0]) & ~np.isnan(of_workers), axis=1)
    if not differs.any():
        return
    rank = int(np.argmax(differs))
    entry = int(np.argmax(of_workers[rank] != of_workers[0]))
    variable = variables[int(np.searchsorted(np.cumsum([value.size for value in own]), entry, "right"))]
    raise UsageError(
        f"The metric variable {variable.path!r} has aggregation={variable.aggregation!r}, so it must be the same on "
        f"every worker, but it is {of_workers[0][entry]:g} on the chief and {of_workers[rank][entry]:g} on worker "
        f"{rank}, which updates it with other rows. Make it a sum (aggregation='sum') or a mean over the rows "
        "(aggregation='mean'), or compute the metric from model.predict."
    )


def _assign(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(np.asarray(value).astype(keras.backend.standardize_dtype(variable.dtype)))
