"""Each worker's rows as a `tf.data.Dataset`."""

import contextlib
import os

import numpy as np
import tensorflow as tf
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from tensorflow.python.eager import context as tf_context

from trireme.backends.adapters import ShardedAdapter, array_inputs, row_numbers_adapter
from trireme.backends.tensorflow.train_step import Shard, take_rows
from trireme.data import rows_of
from trireme.errors import UnsupportedInput


def shard_adapter(adapter, backend):
    """Returns an adapter of `Shard`s: this worker's rows of each batch of `adapter`."""
    kind = ShardedArrays if isinstance(adapter, ArrayDataAdapter) else ShardedDataset
    return kind(adapter, backend)


class ShardedArrays(ShardedAdapter):
    """Rows of arrays. A worker reads only its own rows; all workers shuffle alike."""

    def __init__(self, inner, backend):
        super().__init__(inner, backend.cluster.rank, backend.cluster.num_workers)
        self._backend = backend
        self._inputs = tree.lists_to_tuples(array_inputs(inner, "tensorflow"))

    def get_tf_dataset(self):
        with _common_seed(self._backend):
            row_numbers = row_numbers_adapter(self.inner).get_tf_dataset()
        inputs = tf.data.Dataset.from_tensors(self._inputs).repeat()

        def take(numbers, inputs):
            num_rows = tf.shape(numbers)[0]
            start, stop = rows_of(num_rows, self.rank, self.num_workers)
            mine = numbers[start:stop]
            return Shard(num_rows, tree.traverse(lambda leaf: take_numbered(leaf, mine), inputs))

        rows = tf.data.Dataset.zip((row_numbers, inputs))
        rows = rows.map(take, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        options = tf.data.Options()
        # The inputs are one large constant: optimising the graph would copy it.
        options.experimental_optimization.apply_default_optimizations = False
        return rows.with_options(options).prefetch(tf.data.AUTOTUNE)


def take_numbered(leaf, numbers):
    """Returns the rows of a leaf of whole inputs."""
    if isinstance(leaf, array_slicing.TensorflowSparseWrapper):
        return array_slicing.slice_tensorflow_sparse_wrapper(leaf, numbers)
    if isinstance(leaf, (list, tuple, dict)):
        return None
    return tf.gather(leaf, numbers, axis=0)


class ShardedDataset(ShardedAdapter):
    """Rows of each batch of a `tf.data.Dataset`, which yields global batches on every worker."""

    def __init__(self, inner, backend):
        super().__init__(inner, backend.cluster.rank, backend.cluster.num_workers)
        dataset = inner.get_tf_dataset()
        for spec in tf.nest.flatten(dataset.element_spec):
            if isinstance(spec, tf.SparseTensorSpec):
                raise UnsupportedInput(
                    "The dataset yields a SparseTensor, which strategies with several replicas cannot share out "
                    "yet. Make it dense in the pipeline: `dataset.map(lambda x, y: (tf.sparse.to_dense(x), y))`."
                )
            if spec.shape.rank == 0:
                raise UnsupportedInput(
                    f"The dataset yields a scalar ({spec}): its elements have no rows to share out. "
                    "Batch it: `dataset.batch(batch_size)`, with the global batch size."
                )
        options = tf.data.Options()
        # Workers take rows of the same batches only if every worker's pipeline yields them in the same order.
        options.deterministic = True
        self._dataset = dataset.with_options(options)

    def get_tf_dataset(self):
        def take(*batch):
            return take_rows(batch if len(batch) > 1 else batch[0], self.rank, self.num_workers)

        return self._dataset.map(take).prefetch(tf.data.AUTOTUNE)


@contextlib.contextmanager
def _common_seed(backend):
    """Traces random operations of a pipeline with the chief's global seed, on every worker."""
    context = tf_context.context()
    own_seed = context._seed
    seed = own_seed if own_seed is not None else int.from_bytes(os.urandom(4), "little") >> 1
    context._seed = int(backend.broadcast(np.asarray(seed, np.int64)))
    try:
        yield
    finally:
        context._seed = own_seed
