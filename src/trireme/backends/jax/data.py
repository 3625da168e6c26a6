"""Each process' rows as arrays on its devices; only needed where several processes share a batch."""

import numpy as np
from keras.src import tree
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from trireme.backends.adapters import ShardedAdapter, array_inputs, row_numbers_adapter


def shard_adapter(adapter, backend):
    """Returns an adapter whose batches are global arrays, of which this process reads only its own rows."""
    if backend.cluster.num_workers == 1:
        # Keras' trainer hands each batch to `Replication.place_batch` by itself.
        return adapter
    kind = ShardedArrays if isinstance(adapter, ArrayDataAdapter) else ShardedBatches
    return kind(adapter, backend)


class ShardedBatches(ShardedAdapter):
    """Batches that every process makes whole; its devices get their rows."""

    def __init__(self, inner, backend):
        super().__init__(inner, backend.cluster.rank, backend.cluster.num_workers)
        self._backend = backend

    def get_jax_iterator(self):
        batches = self._batches()
        while True:
            # Keras asks for a batch in the middle of a step, but whoever is slow here keeps the others waiting.
            self._backend.report_waiting(False)
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._backend.report_waiting(True)
            yield batch

    def _batches(self):
        return map(self._backend.distribution.place_batch, self.inner.get_jax_iterator())


class ShardedArrays(ShardedBatches):
    """Rows of arrays, in the chief's order."""

    def __init__(self, inner, backend):
        super().__init__(inner, backend)
        self._row_numbers = row_numbers_adapter(inner)
        self._inputs = array_inputs(inner, "jax")

    def _batches(self):
        distribution = self._backend.distribution
        for numbers in self._order_of_epoch():
            is_even = distribution.divides(len(numbers))
            sharding = distribution.by_rows if is_even else distribution.replicated

            def place(sliceable, numbers=numbers, sharding=sharding):
                def rows(index):
                    mine = numbers[index[0] if isinstance(index, tuple) else index]
                    return sliceable.convert_to_jax_compatible(sliceable[mine])

                shape = (len(numbers), *sliceable.array.shape[1:])
                return distribution.array_of_rows(shape, sharding, rows)

            yield tree.map_structure(place, self._inputs, none_is_leaf=False)

    def _order_of_epoch(self):
        # The order is drawn from NumPy's generator, whose state a user may have set differently on each process.
        batches = list(self._row_numbers.get_jax_iterator())
        order = self._backend.broadcast(np.concatenate(batches))
        return np.split(order, np.cumsum([len(numbers) for numbers in batches])[:-1])
