"""Which gradients travel together, and how they become the mean over the global batch."""

import tensorflow as tf

from trireme.backends.buckets import plan_buckets
from trireme.backends.step import current_step
from trireme.backends.tensorflow.collectives import accumulation_dtype


def exchange_gradients(gradients, collectives, num_workers):
    """Returns the mean of `gradients` over the rows of the global batch.

    Dense gradients are summed in buckets, in the order in which the backward pass makes them: last layers first.
    Sparse ones (`tf.IndexedSlices`) are gathered as slices and never made dense. `None` stays `None`.

    Args:
        gradients: list of this worker's gradients: tensors, `tf.IndexedSlices` or None.
        collectives: the in-graph collectives of the backend.
        num_workers: workers in the exchange.
    """
    step = current_step()
    weight = tf.constant(1.0 / num_workers) if step is None else step.share
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
    values = gradient.values * tf.cast(weight, gradient.values.dtype)
    indices = collectives.all_gather(gradient.indices)
    with tf.control_dependencies([indices]):
        values = collectives.all_gather(values)
    return tf.IndexedSlices(values, indices, gradient.dense_shape)
