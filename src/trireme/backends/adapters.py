"""Keras data adapters that yield one worker's rows of each global batch.

Keras takes a `DataAdapter` as the `x` of `fit` as it is. Ours wrap the adapter Keras would have chosen, so
batch sizes, shuffling, class weights and the number of batches stay Keras' own; only the rows that leave
the adapter differ from worker to worker.
"""

import numpy as np
from keras.src.trainers.data_adapters import array_slicing, get_data_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from trireme.errors import UnsupportedInput

SUPPORTED = (ArrayDataAdapter, TFDatasetAdapter)


def choose_adapter(x, y=None, sample_weight=None, name="x", **options):
    """Returns the adapter Keras would choose for these arguments of `fit`.

    Raises:
        UnsupportedInput: the strategy cannot shard this kind of input.
    """
    adapter = get_data_adapter(x, y, sample_weight, **options)
    if not isinstance(adapter, SUPPORTED):
        raise UnsupportedInput(
            f"`{name}` is a {type(x).__module__}.{type(x).__qualname__}, which strategies with several replicas "
            "cannot share out yet. Pass NumPy arrays, arrays of the backend or a `tf.data.Dataset`, "
            "or train with `trireme.OneDeviceStrategy()`."
        )
    return adapter


def parts_of(data):
    """Returns `(x, y, sample_weight)` of what is given as one: a tuple of them without its last ones, or `x` alone."""
    return (*data, None, None)[:3] if isinstance(data, (tuple, list)) else (data, None, None)


def split_validation(x, y, sample_weight, validation_split):
    """Returns `((x, y, sample_weight), validation_data)` just as Keras' `fit` would split them."""
    return array_slicing.train_validation_split((x, y, sample_weight), validation_split=validation_split)


class ShardedAdapter(DataAdapter):
    """One worker's share of what another adapter yields. Everything that counts batches stays global."""

    def __init__(self, inner, rank, num_workers):
        self.inner = inner
        self.rank = rank
        self.num_workers = num_workers

    @property
    def num_batches(self):
        return self.inner.num_batches

    @property
    def batch_size(self):
        return self.inner.batch_size

    @property
    def has_partial_batch(self):
        return self.inner.has_partial_batch

    @property
    def partial_batch_size(self):
        return self.inner.partial_batch_size

    def on_epoch_begin(self):
        self.inner.on_epoch_begin()

    def on_epoch_end(self):
        self.inner.on_epoch_end()


def array_inputs(adapter, target_backend):
    """Returns the structure of whole arrays behind an `ArrayDataAdapter`, converted as Keras converts them."""
    return array_slicing.convert_to_sliceable(adapter._inputs, target_backend=target_backend)


def row_numbers_adapter(adapter):
    """Returns an `ArrayDataAdapter` that batches and shuffles the row numbers `0..num_rows-1`.

    With the same seeds it draws the permutations that `adapter` would draw, since it is the same code, so
    a worker can take its part of each batch's row numbers and touch no other rows of the arrays.
    """
    return ArrayDataAdapter(
        np.arange(adapter._num_samples, dtype=np.int64),
        batch_size=adapter._batch_size,
        shuffle=adapter._shuffle,
    )
