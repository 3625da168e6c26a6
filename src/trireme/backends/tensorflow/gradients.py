"""Which gradients travel together, and how they become the mean over the global batch."""

import itertools

import tensorflow as tf

from trireme.backends.buckets import plan_buckets
from trireme.backends.step import current_step
from trireme.backends.tensorflow.collectives import accumulation_dtype


class GradientExchange:
    """The gradients of this process' models and those of the other workers; see `trireme.backends.optimizers`."""

    def __init__(self, backend):
        self._backend = backend
        self._numbers = itertools.count()

    def uncompiled(self, function):
        """See `trireme.backends.optimizers`: here the exchange is a part of the traced step."""
        return function

    def mean(self, gradients, variables, memory):
        """See `trireme.backends.optimizers`."""
        if current_step() is None:
            # The same number on every worker: the optimizer's turn among those of loops of the user's own.
            if "number" not in memory:
                memory["number"] = next(self._numbers)
            self._backend.collectives.start_step(f"apply of optimizer {memory['number']}")
        return exchange_gradients(gradients, self._backend.collectives, self._weight())

    def part_of_mean(self, gradients, variables, memory):
        """See `trireme.backends.optimizers`."""
        weight = self._weight()
        return [gradient if gradient is None else _weighted(gradient, weight) for gradient in gradients]

    def sum(self, gradients):
        """See `trireme.backends.optimizers`."""
        return exchange_gradients(gradients, self._backend.collectives, tf.constant(1.0))

    def is_finite_everywhere(self, is_finite):
        """See `trireme.backends.optimizers`."""
        is_bad = tf.logical_and(self._weight() > 0, tf.logical_not(is_finite))
        return self._backend.all_reduce_in_step(tf.cast(is_bad, tf.float32)[tf.newaxis])[0] == 0

    def _weight(self):
        """Returns this worker's share of the rows; outside of a step every worker counts the same."""
        step = current_step()
        return tf.constant(1.0 / self._backend.cluster.num_workers) if step is None else step.share


def _weighted(gradient, weight):
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(weight, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.where(weight > 0, gradient * tf.cast(weight, gradient.dtype), tf.zeros_like(gradient))


def exchange_gradients(gradients, collectives, weight):
    """Returns the sum over the workers of `weight * gradient` for each of `gradients`.

    Dense gradients are summed in buckets, in the order in which the backward pass makes them: last layers first.
    Sparse ones (`tf.IndexedSlices`) are gathered as slices and never made dense. `None` stays `None`.

    Args:
        gradients: list of this worker's gradients: tensors, `tf.IndexedSlices` or None.
        collectives: the in-graph collectives of the backend.
        weight: this worker's factor, a scalar float32 tensor; 0 for a worker that adds nothing.
    """
    result = list(gradients)
    is_dense = {
        index: not isinstance(gradient, tf.IndexedSlices)
        for index, gradient in enumerate(gradients)
        if gradient is not None
    }
    dense = [index for index in is_dense if is_dense[index]]
    num_bytes = [
        (gradients[index].shape.num_elements() or 0) * gradients[index].dtype.size for index in dense
    ]
    kinds = [accumulation_dtype(gradients[index].dtype) for index in dense]
    previous = None
    for positions in plan_buckets(num_bytes, kinds, collectives.first_bucket_bytes):
        bucket = [dense[position] for position in positions]
        # One bucket after the other: workers that exchange in different orders would wait for each other.
        with tf.control_dependencies([previous] if previous is not None else []):
            sums = collectives.all_reduce([gradients[index] for index in bucket], weight)
        previous = sums[0]
        for index, total in zip(bucket, sums, strict=True):
            result[index] = total
    for index in is_dense:
        if not is_dense[index]:
            with tf.control_dependencies([previous] if previous is not None else []):
                result[index] = _gather_slices(gradients[index], collectives, weight)
            previous = result[index].values
    return result


def _gather_slices(gradient, collectives, weight):
    # A worker without rows sends no slices, so weighting its values cannot make a NaN of them.
    gradient = _weighted(gradient, weight)
    indices = collectives.all_gather(gradient.indices)
    with tf.control_dependencies([indices]):
        values = collectives.all_gather(gradient.values)
    if _have_each_row_once(gradient.indices):
        indices, positions = tf.unique(indices)
        values = tf.math.unsorted_segment_sum(values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def _have_each_row_once(indices):
    """Whether TensorFlow has made the indices of slices unique, as for a kernel that meets a sparse tensor.

    One device then has one slice for a row, whoever of its batch has part in it. For an embedding it has one for each
    entry, and Keras' optimizers square each of them by itself, so those stay as they are.
    """
    if tf.executing_eagerly():
        return False
    op = indices.op
    while op.type in ("Cast", "Identity", "Reshape"):
        op = op.inputs[0].op
    return op.type in ("Unique", "UniqueV2")
