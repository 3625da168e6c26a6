"""Each worker's rows as an iterable of `Shard`s, which Keras takes where it expects a `DataLoader`."""

import contextlib

import numpy as np
from keras import ops
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from trireme.backends import agreement
from trireme.backends.adapters import ShardedAdapter, array_inputs, first_batch_of, row_numbers_adapter
from trireme.backends.torch.random_streams import chiefs_stream
from trireme.backends.torch.train_step import Shard, rows_to_take, take_rows
from trireme.errors import UnsupportedInput


def shard_adapter(source, backend):
    """Returns an adapter of `Shard`s: this worker's rows of each batch of a `Source`."""
    if source.is_arrays:
        return ShardedArrays(source, backend)
    return OwnBatches(source, backend) if source.is_own else CommonBatches(source, backend)


class CommonBatches(ShardedAdapter):
    """Rows of batches that every worker makes whole."""

    def __init__(self, source, backend):
        super().__init__(source, backend)
        # Whether something is drawn when a batch is due, and not just the order of all at the beginning. What Python
        # code reads (a `DataLoader`, a generator) may do so.
        self.draws_for_each_batch = not isinstance(self.inner, TFDatasetAdapter)

    def get_torch_dataloader(self):
        """Returns an iterable of `Shard`s, as Keras' trainer asks for it."""
        return _Batches(self._source, self._shards, self)

    def global_batches(self):
        """Yields whole batches, the same on every worker. Draws nothing unless one is taken."""
        yield from first_batch_of(self.inner) or _Batches(self._source, self._whole, self)

    def _source(self):
        return self.inner.get_torch_dataloader()

    def _whole(self, batches):
        return batches

    def _shards(self, batches):
        for batch in agreement.common_batches(batches, self._see, self.source, self.backend):
            yield take_rows(batch, self.rank, self.num_workers)

    def _see(self, batch, number):
        arrays = [leaf for leaf in tree.flatten(batch) if leaf is not None]
        return agreement.see_arrays(arrays, agreement.compares_contents(number))


class ShardedArrays(CommonBatches):
    """Rows of arrays. A worker reads only its own rows; all workers shuffle alike."""

    def __init__(self, source, backend):
        super().__init__(source, backend)
        self._row_numbers = row_numbers_adapter(self.inner)
        self._inputs = array_inputs(self.inner, "torch")
        self.draws_for_each_batch = self.inner._shuffle == "batch"

    def on_epoch_begin(self):
        super().on_epoch_begin()
        self._row_numbers.on_epoch_begin()

    def on_epoch_end(self):
        super().on_epoch_end()
        self._row_numbers.on_epoch_end()

    def _source(self):
        return self._row_numbers.get_torch_dataloader()

    def _whole(self, batches):
        return (self._read(_numbers_in(batch)) for batch in batches)

    def _shards(self, batches):
        for batch in batches:
            numbers = _numbers_in(batch)
            start, stop, num_local_rows = rows_to_take(len(numbers), self.rank, self.num_workers)
            yield Shard(len(numbers), num_local_rows, self._read(numbers, start, stop))

    def _read(self, numbers, start=None, stop=None):
        def rows(sliceable):
            if isinstance(sliceable, array_slicing.TensorflowRaggedSliceable):
                # Rows are filled up to the longest of the whole batch.
                return _converted(sliceable, numbers)[start:stop]
            return _converted(sliceable, numbers[start:stop])

        return tree.map_structure(rows, self._inputs, none_is_leaf=False)


def _converted(sliceable, numbers):
    return ops.convert_to_tensor(sliceable.convert_to_torch_compatible(sliceable[numbers]))


def _numbers_in(batch):
    [numbers] = tree.flatten(batch)
    return np.asarray(numbers.cpu())


class OwnBatches(CommonBatches):
    """Batches that only this worker reads; the global batch is those of all workers."""

    def __init__(self, source, backend):
        super().__init__(source, backend)
        self._of_all_files = source.whole and CommonBatches(source.whole, backend)

    def _whole(self, batches):
        own = (batch for _, batch in agreement.own_batches(batches, _num_rows, self.source, self.backend))
        return agreement.own_or_whole(own, lambda: self._of_all_files.global_batches(), self.source)

    def _shards(self, batches):
        own = self._own_shards(batches)
        return agreement.own_or_whole(own, lambda: self._of_all_files.get_torch_dataloader(), self.source)

    def _own_shards(self, batches):
        latest = None
        for counts, batch in agreement.own_batches(batches, _num_rows, self.source, self.backend):
            num_local_rows = counts[self.rank]
            if num_local_rows:
                latest = batch
            elif batch is not None and latest is None:
                raise UnsupportedInput(
                    f"The first batch of `{self.source.name}` on worker {self.rank} has no rows; it needs at least one."
                )
            rows = latest if num_local_rows else tree.map_structure(_first_row, latest)
            yield Shard(sum(counts), num_local_rows, rows)


def _num_rows(batch):
    return next(leaf for leaf in tree.flatten(batch) if leaf is not None).shape[0]


def _first_row(leaf):
    return None if leaf is None else leaf[:1]


class _Batches:
    """Applies a function to the iterator of a `DataLoader`, whose order is the chief's.

    Args:
        make_loader: returns the loader.
        function: from the iterator over the loader's batches to the one that is wanted.
        adapter: the `CommonBatches`.
    """

    def __init__(self, make_loader, function, adapter):
        self._loader = make_loader()
        self._function = function
        self._adapter = adapter

    def __iter__(self):
        # A loader draws when its iterator is made, some a number and some the order, and Keras makes some that it does
        # not use.
        with self._chiefs_stream():
            batches = iter(self._loader)
        return self._function(self._in_chiefs_order(batches))

    def _in_chiefs_order(self, batches):
        is_first = True
        while True:
            is_drawn = is_first or self._adapter.draws_for_each_batch
            with self._chiefs_stream() if is_drawn else contextlib.nullcontext():
                batch = next(batches, None)
            if batch is None:
                return
            is_first = False
            yield batch

    def _chiefs_stream(self):
        return (
            contextlib.nullcontext() if self._adapter.source.is_own else chiefs_stream(self._adapter.backend)
        )
