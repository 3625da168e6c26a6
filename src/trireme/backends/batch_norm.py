"""Batch normalization by the statistics of the global batch, where a worker sees only its own rows.

`Step.mean_over_rows` is the weighted mean of `step.py` with a gradient. With worker r's loss a mean over its rows and
gradients exchanged with the shares as weights, what worker r must send back through `sum of share_q * x_q` is
`sum of share_q * (gradient on worker q)`: the same mean, of the gradients.
"""

import functools

from trireme.backends.step import current_step


@functools.cache
def install():
    """Teaches Keras' `BatchNormalization` about steps that synchronise it. Outside of those it stays as it is."""
    from keras.layers import BatchNormalization

    BatchNormalization._moments = _over_all_rows(BatchNormalization._moments)


def _over_all_rows(original):
    @functools.wraps(original)
    def moments(self, inputs, mask):
        step = current_step()
        if step is None or not (step.syncs_batch_norm or self.synchronized):
            return original(self, inputs, mask)
        if mask is None:
            return _moments(self, inputs, step)
        return _masked_moments(self, inputs, mask, step)

    return moments


def _moments(layer, inputs, step):
    from keras import ops

    # Not the mean of squares less the square of the mean: that would lose the digits of a small variance.
    mean = step.mean_over_rows(ops.mean(inputs, layer._reduction_axes))
    deviations = ops.square(inputs - _beside(inputs, mean, layer))
    return mean, step.mean_over_rows(ops.mean(deviations, layer._reduction_axes))


def _masked_moments(layer, inputs, mask, step):
    from keras import ops
    from keras.config import epsilon

    weights = ops.cast(ops.broadcast_to(ops.expand_dims(mask, -1), ops.shape(inputs)), inputs.dtype)

    def sum_over_all(values):
        return step.mean_over_rows(step.per_share(ops.sum(values, layer._reduction_axes)))

    # Keras' own divisor, so that the numbers are those of one device also where little is left unmasked.
    divisor = sum_over_all(weights) + epsilon()
    mean = sum_over_all(ops.where(weights > 0, inputs, 0)) / divisor
    deviations = ops.where(weights > 0, ops.square(inputs - _beside(inputs, mean, layer)), 0)
    return mean, sum_over_all(deviations) / divisor


def _beside(inputs, vector, layer):
    """Returns `vector`, which has an entry for each channel, in a shape that goes with `inputs`."""
    from keras import ops

    shape = [1] * len(inputs.shape)
    shape[layer.axis] = -1
    return ops.reshape(vector, shape)
