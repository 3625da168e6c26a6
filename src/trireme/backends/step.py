"""One step on one worker, where a worker sees only its rows of the global batch (TensorFlow, PyTorch).

The rule: **a worker's loss is a mean over its rows, and everything exchanged is weighted by the share of the
global batch's rows that the worker has**. With `n_r` of `n` rows on worker r,

    sum over r of  n_r / n * mean over the n_r rows  =  mean over the n rows,

for gradients, batch statistics and logged losses alike, whatever the split, and a worker without rows adds
nothing. Any loss that is a mean over rows is right without being touched, also in a custom `train_step`.
Keras' losses that are no mean over rows (a sum, a mean over unmasked entries or over sample weights) are
brought to that form here; `reduce_weighted_values` is the one place where Keras divides a loss.
"""

import contextlib
import contextvars
import functools

_step = contextvars.ContextVar("trireme_step", default=None)
_scalar_weight = contextvars.ContextVar("trireme_scalar_weight", default=None)
_is_alone = contextvars.ContextVar("trireme_is_alone", default=False)


class Step:
    """What is known while one step runs or is traced.

    Attributes:
        num_rows: rows of the global batch, a scalar integer tensor.
        num_local_rows: rows of this worker's part, a scalar integer tensor.
        share: `num_local_rows / num_rows`, a scalar float32 tensor; 0 for an empty batch.
        all_reduce: function that sums a float32 vector over the workers, inside the step.
        mean_over_rows: function that takes a tensor, this worker's mean over its rows, to the mean over all rows,
            with its gradient; None in steps that have no use for it.
        syncs_batch_norm: whether batch normalization takes the statistics of all rows.
    """

    def __init__(self, num_rows, num_local_rows, all_reduce, mean_over_rows=None, syncs_batch_norm=False):
        from keras import ops

        self.num_rows = num_rows
        self.num_local_rows = num_local_rows
        self.all_reduce = all_reduce
        self.mean_over_rows = mean_over_rows
        self.syncs_batch_norm = syncs_batch_norm
        self.share = ops.divide_no_nan(ops.cast(num_local_rows, "float32"), ops.cast(num_rows, "float32"))

    def per_share(self, value):
        """Returns `value / share`, and 0 on a worker without rows."""
        from keras import ops

        return ops.divide_no_nan(value, ops.cast(self.share, value.dtype))

    def or_zero(self, value):
        """Returns `value`, and zeros on a worker without rows, where `value` may be NaN."""
        from keras import ops

        return ops.where(self.num_local_rows > 0, value, ops.zeros_like(value))


def current_step():
    """Returns the `Step` that runs in this context, or None outside of a strategy's step."""
    return _step.get()


@contextlib.contextmanager
def running(step):
    """Makes `step` the current one."""
    token = _step.set(step)
    try:
        yield step
    finally:
        _step.reset(token)


@contextlib.contextmanager
def weighting_scalars(weight):
    """Lets a scalar that a `Mean` metric is given count as `weight`, the part that its rows are of a batch."""
    token = _scalar_weight.set(weight)
    try:
        yield
    finally:
        _scalar_weight.reset(token)


@contextlib.contextmanager
def alone():
    """Lets adopted models train as Keras does without a strategy, on this worker, with whole batches."""
    token = _is_alone.set(True)
    try:
        yield
    finally:
        _is_alone.reset(token)


def is_alone():
    """Whether this is inside `alone()`."""
    return _is_alone.get()


@functools.cache
def install():
    """Teaches Keras' losses and its `Mean` metric about steps. Outside of a step both stay as they are."""
    from keras.metrics import Mean
    from keras.src.losses import loss as keras_loss

    keras_loss.reduce_weighted_values = _row_mean_losses(keras_loss)
    Mean.update_state = _row_mean_metrics(Mean.update_state)


def _row_mean_losses(keras_loss):
    original = keras_loss.reduce_weighted_values

    @functools.wraps(original)
    def reduce_weighted_values(
        values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None
    ):
        from keras import ops

        step = current_step()
        if step is None or reduction in (None, "none") or len(values.shape) == 0:
            return original(values, sample_weight, mask, reduction, dtype)
        # On torch Keras multiplies the mask into the very tensor that it was given.
        own_weight = sample_weight if sample_weight is None or mask is None else ops.copy(sample_weight)
        reduce_all = functools.partial(original, values, own_weight, mask, dtype=dtype)
        if mask is None and reduction in ("sum_over_batch_size", "mean"):
            # A mean over rows already. Keras leaves a loss that is known to have no rows unreduced.
            return ops.sum(reduce_all(reduction=reduction))
        loss = ops.sum(reduce_all(reduction="sum"))
        if reduction != "sum":
            counted = _counted(keras_loss, values, sample_weight, mask, reduction, loss.dtype)
            loss = loss * ops.cast(_divisor_inverse(step, counted), loss.dtype)
        return step.per_share(loss)

    return reduce_weighted_values


def _counted(keras_loss, values, sample_weight, mask, reduction, dtype):
    """Returns this worker's `(sum of what a loss is divided by, entries counted, entries there)`.

    The last two differ in their unit where a mask has fewer dimensions than the loss has; their quotient,
    the entries of the loss per entry of the mask, is what Keras scales a masked mean by.
    """
    from keras import ops

    num_values = ops.cast(ops.size(values), dtype)
    if reduction == "mean_with_sample_weight":
        own_weight = None if sample_weight is None else ops.copy(sample_weight)
        weight = keras_loss.apply_mask(own_weight, mask, dtype=dtype, reduction=reduction)
        total = num_values if weight is None else ops.sum(ops.cast(weight, dtype))
        return total, num_values, num_values
    return ops.sum(ops.cast(mask, dtype)), ops.cast(ops.size(mask), dtype), num_values


def _divisor_inverse(step, counted):
    from keras import ops

    total, num_counted, num_values = ops.unstack(
        step.all_reduce(ops.stack([ops.cast(count, "float32") for count in counted])), 3
    )
    return ops.divide_no_nan(ops.divide_no_nan(num_counted, num_values), total)


def _row_mean_metrics(original):
    @functools.wraps(original)
    def update_state(self, values, sample_weight=None):
        from keras import ops

        step, weight = current_step(), _scalar_weight.get()
        if step is not None or weight is not None:
            values = ops.convert_to_tensor(values)
            if len(values.shape) == 0:
                # A scalar stands for the whole local batch: a loss, or a function's mean over its rows. Keras
                # weights it by the rows or, where it does not know them, counts it as one batch.
                values = values if step is None else step.or_zero(values)
                weight = weight if step is None else step.share
                sample_weight = weight if sample_weight is None else sample_weight
        return original(self, values, sample_weight)

    return update_state
