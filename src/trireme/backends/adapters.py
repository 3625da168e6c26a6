"""Keras data adapters that yield one worker's rows of each global batch.

Keras takes a `DataAdapter` as the `x` of `fit` as it is. Ours wrap the adapter Keras would have chosen, so
batch sizes, shuffling, class weights and the number of batches stay Keras' own; only the rows that leave
the adapter differ from worker to worker.
"""

import dataclasses
import warnings

import numpy as np
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing, get_data_adapter
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from trireme.data import DistributedDataset


@dataclasses.dataclass(frozen=True)
class Source:
    """One input of a call, as a worker reads it.

    Attributes:
        adapter: the adapter that Keras chooses for it.
        name: the argument it came as.
        is_own: whether this worker reads data of its own, and not what all workers read.
        parts_per_step: of own data, how many of the adapter's batches make the worker's part of a step.
        whole: of own files, the same input as all workers would read it, in case the files cannot be divided.
    """

    adapter: DataAdapter
    name: str = "x"
    is_own: bool = False
    parts_per_step: int = 1
    whole: "Source | None" = None

    @property
    def is_arrays(self):
        """Whether it is whole arrays, of which a worker can read the rows that it needs."""
        return isinstance(self.adapter, ArrayDataAdapter) and not self.is_own

    def arrays(self):
        """Returns its arrays as the user passed them, where it consists of arrays, else nothing."""
        if not isinstance(self.adapter, ArrayDataAdapter):
            return []
        return [array for array in tree.flatten(self.adapter._inputs) if array is not None]


def choose_source(x, y=None, sample_weight=None, name="x", cluster=None, **options):
    """Returns the `Source` of these arguments of `fit`.

    Args:
        cluster: the processes that share it; None for one alone.

    Raises:
        UnsupportedInput: it has no rows that could be shared out.
    """
    if isinstance(x, DistributedDataset):
        adapter = get_data_adapter(x.own, y, sample_weight, **options)
        return Source(
            adapter, name, is_own=True, parts_per_step=cluster.replicas_per_worker if cluster else 1
        )
    adapter = get_data_adapter(x, y, sample_weight, **options)
    if cluster is None or cluster.num_workers == 1:
        return Source(adapter, name)
    if isinstance(adapter, TFDatasetAdapter):
        from trireme.backends import tf_data

        dataset = tf_data.in_one_order(adapter.get_tf_dataset(), name)
        whole = Source(TFDatasetAdapter(dataset), name)
        own_files = tf_data.own_files(dataset, name, cluster)
        return (
            whole
            if own_files is None
            else Source(TFDatasetAdapter(own_files), name, is_own=True, whole=whole)
        )
    if isinstance(adapter, PyDatasetAdapter):
        _keep_order(adapter, options.get("steps_per_epoch"), name)
    return Source(adapter, name)


def _keep_order(adapter, steps, name):
    """Makes the batches of a `PyDataset` come in the same order on every worker.

    Where an epoch ends before the dataset does, Keras' queue keeps what was read ahead, as much as there was time
    for, and gives that out first in the next epoch.
    """
    if adapter.enqueuer is None or adapter.num_batches is None or steps in (None, adapter.num_batches):
        return
    warnings.warn(
        f"`{name}` is a PyDataset of {adapter.num_batches} batches, of which each epoch takes {steps}. Keras' parallel "
        f"reading has no order then, so it is read without its {adapter.py_dataset.workers} workers. "
        f"Make it {steps} batches long, or leave the number of steps out.",
        stacklevel=6,
    )
    adapter.enqueuer = None


def parts_of(data):
    """Returns `(x, y, sample_weight)` of what is given as one: a tuple of them without its last ones, or `x` alone."""
    return (*data, None, None)[:3] if isinstance(data, (tuple, list)) else (data, None, None)


def split_validation(x, y, sample_weight, validation_split):
    """Returns `((x, y, sample_weight), validation_data)` just as Keras' `fit` would split them."""
    return array_slicing.train_validation_split((x, y, sample_weight), validation_split=validation_split)


class ShardedAdapter(DataAdapter):
    """One worker's share of what another adapter yields. Everything that counts batches stays global."""

    def __init__(self, source, backend):
        self.inner = source.adapter
        self.source = source
        self.backend = backend
        self.rank = backend.cluster.rank
        self.num_workers = backend.cluster.num_workers
        self._num_steps = _longest(source, backend) if source.is_own else None

    @property
    def num_batches(self):
        return self._num_steps if self.source.is_own else self.inner.num_batches

    @property
    def batch_size(self):
        return None if self.source.is_own else self.inner.batch_size

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


def _longest(source, backend):
    """Returns the steps that the workers' own inputs last: those of the longest, None where a length is unknown."""
    num_batches = source.adapter.num_batches
    steps = -1 if num_batches is None else -(-num_batches // source.parts_per_step)
    all_steps = [int(each[0]) for each in backend.all_gather(np.array([steps], np.int64))]
    return None if -1 in all_steps else max(all_steps)


def first_batch_of(adapter):
    """Returns an iterator over the first batch of a `PyDataset` that is read in parallel; for other adapters None.

    Looking at a batch by Keras' queue would leave in it what was read ahead.
    """
    if not isinstance(adapter, PyDatasetAdapter) or adapter.enqueuer is None:
        return None
    return (adapter._standardize_batch(adapter.py_dataset[0]) for _ in range(1))


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
