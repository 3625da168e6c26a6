"""`tf.data` pipelines on several workers, whichever backend trains on them."""

import sys
import threading

import tensorflow as tf
from tensorflow.python.data.experimental.ops import distribute

from trireme.backends.agreement import NUM_SAMPLED, warn_of_files
from trireme.data import local_rows
from trireme.errors import UnsupportedInput

_FILE = tf.data.experimental.AutoShardPolicy.FILE


class EndsAside(tf.data.Dataset):
    """A pipeline whose iterators end on a thread of their own.

    The end of an iterator waits for the thread that tunes it. That thread sleeps longer and longer, up to a minute,
    and when it is told to end it may look before the end can be seen, and sleep again: `CancellationManager` calls
    those who wait first, and says that it is cancelled afterwards. One worker would wait for that between two epochs,
    and all others for it.
    """

    def __init__(self, dataset):
        self._dataset = dataset
        super().__init__(dataset._variant_tensor)

    @property
    def element_spec(self):
        return self._dataset.element_spec

    def _inputs(self):
        return [self._dataset]

    def __iter__(self):
        iterator = super().__iter__()
        # Set last, so that it is let go of last: then nothing else holds the iterator's resource.
        iterator._last_reference = _LastReference(iterator._iterator_resource)
        return iterator


class _LastReference:
    def __init__(self, resource):
        self._resources = [resource]

    def __del__(self):
        if not sys.is_finalizing():
            threading.Thread(target=self._resources.clear, name="end of an iterator", daemon=True).start()


def in_one_order(dataset, name):
    """Returns the pipeline with the same order of batches on every worker.

    Raises:
        UnsupportedInput: it is not batched.
    """
    _check_batched(dataset, name)
    options = tf.data.Options()
    options.deterministic = True
    return EndsAside(dataset.with_options(options))


def own_files(dataset, name, cluster):
    """Returns the pipeline over this worker's files, in batches of its share of the batch size.

    None where the pipeline does not ask for that by `AutoShardPolicy.FILE`, and where it cannot be, with a warning.
    """
    if dataset.options().experimental_distribute.auto_shard_policy != _FILE:
        return None
    batch_size = int(distribute.compute_batch_size(dataset))
    if batch_size < cluster.num_workers:
        size = "unknown" if batch_size < 0 else batch_size
        warn_of_files(
            name, f"the batch size is {size}, and each of {cluster.num_workers} workers needs a row."
        )
        return None
    try:
        own = distribute._AutoShardDataset(dataset, cluster.num_workers, cluster.rank)
    except tf.errors.OpError as error:
        warn_of_files(name, f"TensorFlow says: {error.message.splitlines()[0]}")
        return None
    return EndsAside(own.rebatch(local_rows(batch_size, cluster.rank, cluster.num_workers)))


def _check_batched(dataset, name):
    specs = [spec for spec in tf.nest.flatten(dataset.element_spec) if hasattr(spec, "shape")]
    if any(spec.shape.rank == 0 for spec in specs):
        scalar = next(spec for spec in specs if spec.shape.rank == 0)
        raise UnsupportedInput(
            f"`{name}` yields a scalar ({scalar}): its elements have no rows to share out. "
            "Batch it, with the global batch size: `dataset.batch(batch_size)`."
        )
    rows = {spec.shape[0] for spec in specs if spec.shape.rank is not None and spec.shape[0] is not None}
    if len(rows) > 1:
        shapes = ", ".join(str(tuple(spec.shape)) for spec in specs)
        raise UnsupportedInput(
            f"`{name}` yields elements with the shapes {shapes}, which have no common number of rows. "
            "Batch it, with the global batch size: `dataset.batch(batch_size)`."
        )


def see_batch(batch, with_contents):
    """Returns the tensors behind what is `Seen` of a batch: rows of each part, shapes of all tensors, a checksum.

    Args:
        batch: a structure of tensors, of sparse or ragged ones too.
        with_contents: a scalar boolean tensor: whether to compute the checksum.
    """
    leaves = [leaf for leaf in tf.nest.flatten(batch) if not isinstance(leaf, tf.experimental.Optional)]
    tensors = tf.nest.flatten(leaves, expand_composites=True)
    num_rows = tuple(num_rows_of(leaf) for leaf in leaves)
    shapes = tuple(tf.shape(tensor, tf.int64) for tensor in tensors)
    contents = tf.cond(with_contents, lambda: _checksum(tensors), lambda: tf.constant(0, tf.int64))
    return num_rows, shapes, contents


def num_rows_of(leaf):
    """Returns the rows of a tensor, sparse or ragged ones too, as a scalar int64 tensor."""
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    return tf.shape(leaf, tf.int64)[0]


def _checksum(tensors):
    parts = [
        tf.strings.to_hash_bucket_fast(tf.io.serialize_tensor(_some(tensor)), 1 << 40) for tensor in tensors
    ]
    total = tf.constant(1, tf.int64)
    for part in parts:
        total = tf.bitwise.bitwise_and(total * 31 + part, (1 << 55) - 1)
    return total + 1


def _some(tensor):
    flat = tf.reshape(tensor, [-1])
    return flat[:: tf.maximum(tf.size(flat) // NUM_SAMPLED, 1)]


def rows_of_sparse(leaf, start, stop):
    """Returns the rows `start..stop` of a `tf.SparseTensor`."""
    start, stop = tf.cast(start, tf.int64), tf.cast(stop, tf.int64)
    is_mine = (leaf.indices[:, 0] >= start) & (leaf.indices[:, 0] < stop)
    indices = tf.boolean_mask(leaf.indices, is_mine)
    shift = tf.one_hot(0, len(leaf.shape), start, dtype=tf.int64)
    sizes = [stop - start]
    sizes += [
        leaf.dense_shape[axis] if size is None else tf.constant(size, tf.int64)
        for axis, size in enumerate(leaf.shape[1:], 1)
    ]
    return tf.SparseTensor(indices - shift, tf.boolean_mask(leaf.values, is_mine), tf.stack(sizes))
