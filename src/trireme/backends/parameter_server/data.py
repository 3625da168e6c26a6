"""Arrays whose rows come as the servers hand them out, as one of Keras' data adapters."""

import keras
from keras.src import tree
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from trireme.backends.adapters import array_inputs
from trireme.backends.parameter_server.rounds import row_order
from trireme.errors import UnsupportedInput, UsageError


def batch_rows_of(adapter, strategy):
    """Returns how many rows a worker's step has: with `max_staleness=0` the workers share a batch.

    Raises:
        UsageError: the batch cannot be shared evenly.
    """
    batch_size, num_workers = adapter.batch_size, strategy.cluster.num_workers
    if strategy.max_staleness != 0:
        return batch_size
    if batch_size % num_workers:
        low = batch_size // num_workers * num_workers
        raise UsageError(
            f"The batch size {batch_size} does not divide by the {num_workers} workers, who share each batch when "
            f"max_staleness is 0. Take {' or '.join(str(n) for n in (low, low + num_workers) if n)}."
        )
    return batch_size // num_workers


class RangedArrays(DataAdapter):
    """What a worker gets of arrays in one round after the other.

    Args:
        inner: the adapter that Keras would have used.
        side: the backend's side of asynchronous training, see `backend_side`.
        batch_rows: rows of a batch.
        shuffle: as for Keras' `fit`.
        seed: common to all workers.
        max_batches: how many of them are enough, None for all.

    Raises:
        UnsupportedInput: the input cannot be read at any row.
    """

    def __init__(self, inner, side, batch_rows, shuffle=False, seed=0, max_batches=None):
        if not isinstance(inner, ArrayDataAdapter):
            raise UnsupportedInput(
                "ParameterServerStrategy hands out rows by their number, so it takes NumPy arrays or arrays of "
                f"the backend, not what {type(inner).__name__} reads. Load the data into arrays, or train with "
                "MirroredStrategy."
            )
        self.inputs = tree.lists_to_tuples(array_inputs(inner, keras.backend.backend()))
        self.num_rows = inner._num_samples
        if max_batches is not None:
            self.num_rows = min(self.num_rows, max_batches * batch_rows)
        self._side = side
        self._batch_rows = batch_rows
        self._shuffle = shuffle
        self._seed = seed
        self._exchange = None

    def begin(self, exchange, report, number, what):
        """Begins a round of these rows; returns False if it was passed over."""
        self._exchange, self._report = exchange, report
        self._order = row_order(self.num_rows, self._batch_rows, self._shuffle, [self._seed, number])
        return exchange.rounds.begin(number, what, self.num_rows, self._batch_rows)

    def row_numbers(self):
        """Yields the rows of each batch of this worker in the round that was begun."""
        with self._exchange.keeping_failure():
            for start, stop in self._exchange.rounds.batches(self._report):
                yield self._order[start:stop]

    def spec(self):
        """Returns symbolic tensors of the structure, shapes and dtypes of a batch."""
        return tree.map_structure(_spec, self.inputs, none_is_leaf=False)

    def get_tf_dataset(self):
        return self._side.batches(self)

    def get_jax_iterator(self):
        return self._side.batches(self)

    def get_torch_dataloader(self):
        return self._side.batches(self)

    @property
    def num_batches(self):
        # None would make Keras hold to the number that the first epoch happens to have.
        return 0

    @property
    def batch_size(self):
        return self._batch_rows

    @property
    def has_partial_batch(self):
        return bool(self.num_rows % self._batch_rows)

    @property
    def partial_batch_size(self):
        return self.num_rows % self._batch_rows or None


def _spec(leaf):
    array = getattr(leaf, "array", leaf)
    return keras.KerasTensor((None, *array.shape[1:]), keras.backend.standardize_dtype(array.dtype))
