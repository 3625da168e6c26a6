"""Each process' rows as arrays on its devices; where several processes share a batch, or each device has its own."""

import itertools

import jax
import numpy as np
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils

from trireme.backends import agreement
from trireme.backends.adapters import ShardedAdapter, array_inputs, first_batch_of, row_numbers_adapter
from trireme.errors import UnsupportedInput


def shard_adapter(source, backend):
    """Returns an adapter whose batches are global arrays, of which this process reads only its own rows.

    Raises:
        UnsupportedInput: it holds sparse matrices, and there are several processes.
    """
    if backend.cluster.num_workers == 1:
        # Keras' trainer hands each batch to `Replication.place_batch` by itself.
        return OwnBatchesOfOneProcess(source, backend) if source.is_own else source.adapter
    for array in source.arrays():
        _refuse_sparse(array, source.name)
    if source.is_arrays:
        return ShardedArrays(source, backend)
    return OwnBatches(source, backend) if source.is_own else CommonBatches(source, backend)


def _refuse_sparse(array, name):
    if data_adapter_utils.is_jax_sparse(array) or hasattr(array, "tocoo") or hasattr(array, "dense_shape"):
        raise UnsupportedInput(
            f"`{name}` holds a sparse matrix ({type(array).__module__}.{type(array).__qualname__}), which JAX cannot "
            "spread over several processes. Make it dense (`x.toarray()`, `tf.sparse.to_dense(x)`), or let one process "
            "drive all devices of the machine: `trireme.MirroredStrategy()` under plain `python`."
        )


class CommonBatches(ShardedAdapter):
    """Batches that every process makes whole; its devices get their rows."""

    def get_jax_iterator(self):
        batches = self._batches()
        while True:
            # Keras asks for a batch in the middle of a step, but whoever is slow here keeps the others waiting.
            self.backend.report_waiting(False)
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.backend.report_waiting(True)
            yield batch

    def first_batch(self):
        """Yields a batch to build a model by."""
        yield from first_batch_of(self.inner) or self.get_jax_iterator()

    def _batches(self):
        batches = iter(self.inner.get_jax_iterator())
        for batch in agreement.common_batches(batches, self._see, self.source, self.backend):
            yield self.backend.distribution.place_batch(batch)

    def _see(self, batch, number):
        arrays = [leaf for leaf in tree.flatten(self._without_sparse(batch)) if leaf is not None]
        return agreement.see_arrays(arrays, agreement.compares_contents(number))

    def _without_sparse(self, batch):
        for leaf in tree.flatten(batch):
            _refuse_sparse(leaf, self.source.name)
        return batch


class ShardedArrays(CommonBatches):
    """Rows of arrays, in the chief's order."""

    def __init__(self, source, backend):
        super().__init__(source, backend)
        self._row_numbers = row_numbers_adapter(self.inner)
        self._inputs = array_inputs(self.inner, "jax")

    def _batches(self):
        distribution = self.backend.distribution
        for numbers in self._order_of_epoch():
            is_even = distribution.divides(len(numbers))
            sharding = distribution.by_rows if is_even else distribution.replicated

            def place(sliceable, numbers=numbers, sharding=sharding):
                if isinstance(sliceable, array_slicing.TensorflowRaggedSliceable):
                    # Rows are filled up to the longest of the whole batch.
                    return distribution.place_batch(sliceable.convert_to_jax_compatible(sliceable[numbers]))

                def rows(index):
                    mine = numbers[index[0] if isinstance(index, tuple) else index]
                    return sliceable.convert_to_jax_compatible(sliceable[mine])

                # A pandas series gets a second axis when it is converted.
                shape = (len(numbers), *rows(slice(0)).shape[1:])
                return distribution.array_of_rows(shape, sharding, rows)

            yield tree.map_structure(place, self._inputs, none_is_leaf=False)

    def _order_of_epoch(self):
        # The order is drawn from NumPy's generator, whose state a user may have set differently on each process.
        batches = list(self._row_numbers.get_jax_iterator())
        order = self.backend.broadcast(np.concatenate(batches))
        return np.split(order, np.cumsum([len(numbers) for numbers in batches])[:-1])


class OwnBatches(CommonBatches):
    """Batches that only this process reads; the global batch is those of all processes."""

    def __init__(self, source, backend):
        super().__init__(source, backend)
        self._whole = source.whole and CommonBatches(source.whole, backend)

    def _batches(self):
        return agreement.own_or_whole(self._own_batches(), lambda: self._whole._batches(), self.source)

    def _own_batches(self):
        latest = None
        batches = map(self._without_sparse, self.inner.get_jax_iterator())
        batches = _joined(batches, self.source.parts_per_step)
        for counts, batch in agreement.own_batches(batches, _num_rows, self.source, self.backend, _kind):
            latest = tree.map_structure(_no_rows, latest) if batch is None else batch
            yield tree.map_structure(lambda leaf, counts=counts: self._place(leaf, counts), latest)

    def _place(self, leaf, counts):
        if leaf is None:
            return None
        distribution = self.backend.distribution
        if len(set(counts)) == 1 and distribution.divides(sum(counts)):
            shape = (sum(counts), *leaf.shape[1:])
            return jax.make_array_from_process_local_data(distribution.by_rows, leaf, shape)
        # Every device computes all rows of a batch that cannot be spread evenly.
        return distribution.place_batch(np.concatenate(self.backend.all_gather(leaf)))


class OwnBatchesOfOneProcess(ShardedAdapter):
    """Batches of which the devices of this one process take one each."""

    def get_jax_iterator(self):
        return _joined(self.inner.get_jax_iterator(), self.source.parts_per_step)


def _joined(batches, count):
    """Yields each `count` of the batches as one; the last may consist of fewer."""
    batches = iter(batches)
    while parts := list(itertools.islice(batches, count)):
        yield parts[0] if len(parts) == 1 else tree.map_structure(_concatenated, *parts)


def _concatenated(*leaves):
    return None if leaves[0] is None else np.concatenate([np.asarray(leaf) for leaf in leaves])


def _kind(batch):
    return ", ".join(
        "None" if leaf is None else f"{leaf.dtype} {('rows', *leaf.shape[1:])}"
        for leaf in tree.flatten(batch)
    )


def _num_rows(batch):
    return next(leaf for leaf in tree.flatten(batch) if leaf is not None).shape[0]


def _no_rows(leaf):
    return None if leaf is None else leaf[:0]
