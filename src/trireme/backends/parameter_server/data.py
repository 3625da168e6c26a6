"""Inputs that come as the servers hand them out, as Keras' data adapters."""

from concurrent.futures import ThreadPoolExecutor

import keras
from keras.src import tree
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import NUM_BATCHES_FOR_TENSOR_SPEC
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

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


def ranged(inner, strategy, shuffle=False, max_batches=None, is_training=False):
    """Returns the adapter of what Keras' adapter `inner` reads, in the ranges that the servers hand out.

    Args:
        strategy: the `ParameterServerStrategy`.
        shuffle: as for Keras' `fit`.
        max_batches: how many of them are enough, None for all.
        is_training: whether batches are those of updates, which workers share when `max_staleness` is 0.

    Raises:
        UnsupportedInput: the input cannot be read at any place.
        UsageError: the batches cannot be shared evenly.
    """
    if isinstance(inner, PyDatasetAdapter):
        if is_training and strategy.max_staleness == 0:
            raise UnsupportedInput(
                "With max_staleness=0 the workers share the rows of each batch, which a PyDataset makes as a whole. "
                "Load the data into arrays, or leave max_staleness out."
            )
        return RangedBatches(inner, strategy, shuffle, max_batches)
    if isinstance(inner, ArrayDataAdapter):
        if not inner._num_samples:
            raise UsageError("The arrays have no rows. Pass arrays with one row or more.")
        batch_rows = batch_rows_of(inner, strategy) if is_training else inner.batch_size
        adapter = RangedArrays(inner, strategy, batch_rows, shuffle, max_batches)
        adapter.update_rows = inner.batch_size
        return adapter
    raise UnsupportedInput(
        "ParameterServerStrategy hands out rows by their number, so it takes NumPy arrays, arrays of the backend, or a "
        f"PyDataset, not what {type(inner).__name__} reads. Load the data into arrays, make a keras.utils.PyDataset of "
        "it, or train with MirroredStrategy."
    )


class Ranged(DataAdapter):
    """What a worker gets of one input, in one round after the other.

    Attributes:
        num_rows: what a round hands out: rows, or batches where an input is only known by batches.
        update_rows: rows of an update, if several workers' steps make one.
    """

    update_rows = None

    def __init__(self, strategy, num_rows, batch_rows, shuffle, max_batches):
        self.num_rows = num_rows if max_batches is None else min(num_rows, max_batches * batch_rows)
        self._side = strategy.side
        self._batch_rows = batch_rows
        self._shuffle = shuffle
        self._seed = strategy.seed
        self._exchange = None

    def begin(self, exchange, report, number, what):
        """Begins a round; returns False if it was passed over."""
        self._exchange, self._report = exchange, report
        self._order = row_order(self.num_rows, self._batch_rows, self._shuffle, [self._seed, number])
        return exchange.rounds.begin(number, what, self.num_rows, self._batch_rows, self.update_rows)

    def row_numbers(self):
        """Yields the rows of each batch of this worker in the round that was begun."""
        with self._exchange.keeping_failure():
            for start, stop in self._exchange.rounds.batches(self._report):
                yield self._order[start:stop]

    @property
    def num_batches(self):
        # None would make Keras hold to the number that the first epoch happens to have.
        return 0

    @property
    def batch_size(self):
        return None

    @property
    def has_partial_batch(self):
        return None

    @property
    def partial_batch_size(self):
        return None


class RangedArrays(Ranged):
    """Rows of arrays.

    Args:
        inner: the adapter that Keras would have used.
        strategy: the strategy.
        batch_rows: rows of a batch.
        shuffle: as for Keras' `fit`.
        max_batches: how many of them are enough, None for all.
    """

    def __init__(self, inner, strategy, batch_rows, shuffle, max_batches):
        super().__init__(strategy, inner._num_samples, batch_rows, shuffle, max_batches)
        self.inputs = tree.lists_to_tuples(array_inputs(inner, keras.backend.backend()))

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
    def batch_size(self):
        return self._batch_rows


class RangedBatches(Ranged):
    """Batches of a `PyDataset`, which makes them by their number.

    Its `workers` read ahead as threads, and no further than the range under way: what comes after it may be another
    worker's.
    """

    def __init__(self, inner, strategy, shuffle, max_batches):
        self._inner = inner
        self._dataset = inner.py_dataset
        if not self._dataset.num_batches:
            raise UnsupportedInput(
                f"num_batches of the PyDataset is {self._dataset.num_batches}, but with ParameterServerStrategy an "
                "epoch is every batch once: give it a length, of one batch or more."
            )
        super().__init__(strategy, self._dataset.num_batches, 1, shuffle, max_batches)

    def spec(self):
        """Returns symbolic tensors of the structure, shapes and dtypes of a batch."""
        return tree.map_structure(_spec, self._read(0), none_is_leaf=False)

    def batches(self):
        """Yields the batches of this worker in the round that was begun."""
        workers = self._dataset.workers
        if workers < 2:
            yield from (self._read(number) for (number,) in self.row_numbers())
            return
        pool, ahead = ThreadPoolExecutor(workers), {}
        try:
            for (number,) in self.row_numbers():
                upcoming = self._exchange.rounds.upcoming(self._dataset.max_queue_size)
                for i in (number, *self._order[upcoming]):
                    if i not in ahead:
                        ahead[i] = pool.submit(self._read, i)
                yield ahead.pop(number).result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def on_epoch_begin(self):
        self._dataset.on_epoch_begin()

    def on_epoch_end(self):
        self._dataset.on_epoch_end()

    def get_tf_dataset(self):
        # Not Keras' own, which reads ahead: asking for the batch after a range says that the range is done.
        sample = [self._read(number) for number in range(min(self.num_rows, NUM_BATCHES_FOR_TENSOR_SPEC))]
        return self._side.generated(self.batches, data_adapter_utils.get_tensor_spec(sample))

    def get_jax_iterator(self):
        return data_adapter_utils.get_jax_iterator(self.batches())

    def get_torch_dataloader(self):
        return data_adapter_utils.get_torch_dataloader(self.batches())

    def _read(self, number):
        return self._inner._standardize_batch(self._dataset[int(number)])


def _spec(leaf):
    array = getattr(leaf, "array", leaf)
    return keras.KerasTensor((None, *array.shape[1:]), keras.backend.standardize_dtype(array.dtype))
