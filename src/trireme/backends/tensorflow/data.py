"""Each worker's rows, of arrays as a `tf.data.Dataset`, of anything else batch by batch."""

import contextlib
import os

import numpy as np
import tensorflow as tf
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from tensorflow.python.eager import context as tf_context

from trireme.backends import agreement, tf_data
from trireme.backends.adapters import ShardedAdapter, array_inputs, row_numbers_adapter
from trireme.backends.tensorflow.train_step import Shard, ShardIterator, no_rows_of, num_rows_of, take_rows
from trireme.data import rows_of


def shard_adapter(source, backend):
    """Returns an adapter of `Shard`s: this worker's rows of each batch of a `Source`."""
    if source.is_arrays:
        return ShardedArrays(source, backend)
    return OwnBatches(source, backend) if source.is_own else CommonBatches(source, backend)


class ShardedArrays(ShardedAdapter):
    """Rows of arrays. A worker reads only its own rows; all workers shuffle alike."""

    def __init__(self, source, backend):
        super().__init__(source, backend)
        self._inputs = tree.lists_to_tuples(array_inputs(self.inner, "tensorflow"))

    def get_tf_dataset(self):
        with _common_seed(self.backend):
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
        return tf_data.EndsAside(rows.with_options(options).prefetch(tf.data.AUTOTUNE))

    def specs(self):
        """Returns the structure of specs of what a step gets, to build a model by."""
        return self.get_tf_dataset().element_spec.data


def take_numbered(leaf, numbers):
    """Returns the rows of a leaf of whole inputs."""
    if isinstance(leaf, array_slicing.TensorflowSparseWrapper):
        return array_slicing.slice_tensorflow_sparse_wrapper(leaf, numbers)
    if isinstance(leaf, (list, tuple, dict)):
        return None
    return tf.gather(leaf, numbers, axis=0)


class CommonBatches(ShardedAdapter):
    """Rows of batches that every worker makes whole. What the workers compare of a batch is computed beside it."""

    def __init__(self, source, backend):
        super().__init__(source, backend)
        self._batches = self.inner.get_tf_dataset()

    def get_tf_dataset(self):
        """Returns what Keras takes for a dataset: an iterable whose iterators yield `Shard`s."""
        batches = self._batches.enumerate()
        if _reads_ahead(self.inner):
            batches = batches.map(self._look)
        else:
            batches = batches.map(self._look, tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)
        _, spec = batches.element_spec
        return _Iterable(batches, self._shards, spec)

    def specs(self):
        """See `ShardedArrays.specs`."""
        return _without_optionals(self._batches.element_spec)

    def _look(self, number, batch):
        seen = tf_data.see_batch(batch, agreement.compares_contents(number))
        return seen, take_rows(batch, self.rank, self.num_workers)

    def _shards(self, elements):
        batches = agreement.common_batches(
            elements, lambda element, _: _seen(element[0]), self.source, self.backend
        )
        return (shard for _, shard in batches)


def _seen(tensors):
    num_rows, shapes, checksum = tensors
    return agreement.Seen(
        tuple(int(count) for count in num_rows),
        tuple(tuple(shape.numpy().tolist()) for shape in shapes),
        int(checksum),
    )


class OwnBatches(ShardedAdapter):
    """Batches that only this worker reads; the global batch is those of all workers."""

    def __init__(self, source, backend):
        super().__init__(source, backend)
        self._batches = self.inner.get_tf_dataset()
        self._whole = source.whole and CommonBatches(source.whole, backend)

    def get_tf_dataset(self):
        """See `CommonBatches.get_tf_dataset`."""
        batches = self._batches if _reads_ahead(self.inner) else self._batches.prefetch(tf.data.AUTOTUNE)
        spec = Shard(tf.TensorSpec((), tf.int32), tree.map_structure(_with_any_rows, batches.element_spec))
        return _Iterable(batches, self._shards, spec)

    def specs(self):
        """See `ShardedArrays.specs`."""
        return _without_optionals(self._batches.element_spec)

    def _shards(self, batches):
        return agreement.own_or_whole(
            self._own_shards(batches), lambda: iter(self._whole.get_tf_dataset()), self.source
        )

    def _own_shards(self, batches):
        latest = None
        parts = agreement.own_batches(
            batches, lambda batch: int(num_rows_of(batch)), self.source, self.backend
        )
        for counts, batch in parts:
            latest = no_rows_of(latest) if batch is None else batch
            yield Shard(tf.constant(sum(counts), tf.int32), latest)


def _with_any_rows(spec):
    """Returns the spec of tensors that differ from those of `spec` in their number of rows at most."""
    if not isinstance(spec, tf.TensorSpec | tf.SparseTensorSpec | tf.RaggedTensorSpec):
        return spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def _without_optionals(specs):
    # Keras' adapters put these where a structure has None.
    return tree.map_structure(lambda spec: None if isinstance(spec, tf.OptionalSpec) else spec, specs)


def _reads_ahead(adapter):
    """Whether it is a `PyDataset` read in parallel: that must not be asked for more than an epoch has."""
    return isinstance(adapter, PyDatasetAdapter) and adapter.enqueuer is not None


class _Iterable:
    def __init__(self, dataset, shards_of, spec):
        self._dataset = tf_data.EndsAside(dataset)
        self._shards_of = shards_of
        self._spec = spec

    def __iter__(self):
        # At once, as Keras does: the iterators of a pipeline that shuffles draw when they are made.
        return ShardIterator(self._shards_of(iter(self._dataset)), self._spec)


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
