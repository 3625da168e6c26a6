"""Each worker's rows as an iterable of `Shard`s, which Keras takes where it expects a `DataLoader`."""

import contextlib

import numpy as np
from keras import ops
from keras.src import tree
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from trireme.backends.adapters import ShardedAdapter, array_inputs, row_numbers_adapter
from trireme.backends.torch.random_streams import chiefs_stream
from trireme.backends.torch.train_step import Shard, rows_to_take, take_rows


def shard_adapter(adapter, backend):
    """Returns an adapter of `Shard`s: this worker's rows of each batch of `adapter`."""
    kind = ShardedArrays if isinstance(adapter, ArrayDataAdapter) else ShardedBatches
    return kind(adapter, backend)


class ShardedBatches(ShardedAdapter):
    """Rows of batches that every worker makes whole."""

    # Whether the order within a batch is drawn when the batch is due, and not the order of all at the beginning.
    draws_for_each_batch = False

    def __init__(self, inner, backend):
        super().__init__(inner, backend.cluster.rank, backend.cluster.num_workers)
        self.backend = backend
        if isinstance(inner, TFDatasetAdapter):
            self.inner = _in_one_order(inner)

    def get_torch_dataloader(self):
        """Returns an iterable of `Shard`s, as Keras' trainer asks for it."""
        return _Batches(self._source(), self._shard, self)

    def global_batches(self):
        """Yields whole batches, the same on every worker. Draws nothing unless one is taken."""
        yield from _Batches(self._source(), self._whole, self)

    def _source(self):
        return self.inner.get_torch_dataloader()

    def _whole(self, batch):
        return batch

    def _shard(self, batch):
        return take_rows(batch, self.rank, self.num_workers)


class ShardedArrays(ShardedBatches):
    """Rows of arrays. A worker reads only its own rows; all workers shuffle alike."""

    def __init__(self, inner, backend):
        super().__init__(inner, backend)
        self._row_numbers = row_numbers_adapter(inner)
        self._inputs = array_inputs(inner, "torch")
        self.draws_for_each_batch = inner._shuffle == "batch"

    def on_epoch_begin(self):
        super().on_epoch_begin()
        self._row_numbers.on_epoch_begin()

    def on_epoch_end(self):
        super().on_epoch_end()
        self._row_numbers.on_epoch_end()

    def _source(self):
        return self._row_numbers.get_torch_dataloader()

    def _whole(self, batch):
        return self._read(_numbers_in(batch))

    def _shard(self, batch):
        numbers = _numbers_in(batch)
        start, stop, num_local_rows = rows_to_take(len(numbers), self.rank, self.num_workers)
        return Shard(len(numbers), num_local_rows, self._read(numbers[start:stop]))

    def _read(self, numbers):
        def rows(sliceable):
            return ops.convert_to_tensor(sliceable.convert_to_torch_compatible(sliceable[numbers]))

        return tree.map_structure(rows, self._inputs, none_is_leaf=False)


def _numbers_in(batch):
    [numbers] = tree.flatten(batch)
    return np.asarray(numbers.cpu())


class _Batches:
    """Applies a function to each batch of a `DataLoader`, whose order is the chief's."""

    def __init__(self, loader, function, adapter):
        self._loader = loader
        self._function = function
        self._adapter = adapter

    def __iter__(self):
        # A loader draws a number when its iterator is made, and Keras makes some that it does not use.
        return map(self._function, self._in_chiefs_order(iter(self._loader)))

    def _in_chiefs_order(self, batches):
        is_first = True
        while True:
            is_drawn = is_first or self._adapter.draws_for_each_batch
            with chiefs_stream(self._adapter.backend) if is_drawn else contextlib.nullcontext():
                batch = next(batches, None)
            if batch is None:
                return
            is_first = False
            yield batch


def _in_one_order(adapter):
    """Returns the adapter of a `tf.data.Dataset` whose pipeline yields the same order on every worker."""
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = True
    return TFDatasetAdapter(adapter.get_tf_dataset().with_options(options))
