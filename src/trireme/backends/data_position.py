"""Where a call of `fit` is in its input, and the way back to that place in another process.

Arrays are shuffled anew from a seed (TensorFlow) or from a global generator (NumPy's on JAX, PyTorch's own), so an
epoch's order comes back with the states that the generators had when the epoch's iterator was made and when its
first batch was asked for. A `tf.data` pipeline draws the seeds of its shuffles at the beginning of each
iteration: as many iterations are begun, and left, as there were. Then the batches that were trained already are
read once more and dropped, so the way back costs reading, no training, and works for every input that yields
the same rows for the same seeds.
"""

import itertools
import random
import sys
import warnings

import numpy as np
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from trireme.backends import pipelines, random_state
from trireme.errors import BackupWarning, UsageError

# The moments of an iteration whose random states decide its order.
_MADE, _BEGUN = "made", "begun"


class DataPosition:
    """The place of one `EpochIterator` of Keras.

    Args:
        epoch_iterator: the one over the training data, before it is used.
    """

    def __init__(self, epoch_iterator):
        self._iterator = epoch_iterator
        # The batches read of each iteration that was ever begun, the last of which may be going on.
        self._read = []
        # By moment, the random states of the iteration that was made last, and those that the next one is to repeat.
        self._states = {}
        self._states_to_repeat = {}
        self._epoch = None
        self._follow_iterations()

    def begin(self, backend):
        """Prepares the input for coming back to it; says so where that cannot work."""
        if self._is_traced_arrays() and _tensorflow_seed() is None:
            self._trace_again(int(backend.broadcast(np.array(random.getrandbits(31), np.int64))))
        problem = pipelines.problem_of(self._adapter())
        if problem:
            warnings.warn(f"{problem} Backups are made all the same.", BackupWarning, stacklevel=2)

    def begin_epoch(self):
        """Takes note of the place before the epoch's first batch."""
        iterator = self._iterator
        continues = iterator.steps_per_epoch is not None and iterator._current_iterator is not None
        read = list(self._read)
        if continues and isinstance(iterator._current_iterator, _Iteration) and _BEGUN not in self._states:
            read.append(0)
        self._epoch = {
            "read": read,
            "continues": continues,
            "steps_seen": iterator._steps_seen if continues else 0,
            "num_batches": iterator._num_batches,
        }

    def took(self, num_batches):
        """Takes note of batches that were read of the iteration that goes on."""
        if self._read:
            self._read[-1] += num_batches

    def state(self, batch, is_entered):
        """Returns the place before batch `batch` of the epoch, as `(state, arrays)` of a backup.

        Args:
            batch: the number of batches of the epoch that were trained.
            is_entered: whether Keras has begun to go through the epoch.
        """
        state = {**self._epoch, "batch": batch, "is_entered": is_entered, "length": self.length}
        state["seed"] = _tensorflow_seed()
        state["shuffles"] = pipelines.shuffle_seeds(self._dataset()) if self._dataset() is not None else []
        arrays = {}
        if is_entered or self._epoch["continues"]:
            for moment, random_then in self._states.items():
                state[moment] = random_then[0]
                arrays |= {f"{moment}/{key}": array for key, array in random_then[1].items()}
        return state, arrays

    def check(self, state, where):
        """Raises `UsageError` or warns if this input is not the one that `state` is a place in."""
        if state["batch"] and state["length"] != self.length:
            raise UsageError(
                f"The newest backup in {where} is in the middle of an epoch of {state['length']} batches, but the "
                f"epochs of this input have {self.length}. Train with the same data and batch size, "
                "or give another location."
            )
        if self._dataset() is not None and state["shuffles"] != pipelines.shuffle_seeds(self._dataset()):
            warnings.warn(
                f"The pipeline shuffles with other seeds than when the backup in {where} was made: rows of the "
                f"interrupted epoch may come again or not at all. Its seed was {state['seed']}: set it by "
                f"keras.utils.set_random_seed({state['seed']}) before the pipeline is made, or start with "
                f"TRIREME_SEED={state['seed']}.",
                BackupWarning,
                stacklevel=2,
            )

    def return_to(self, state, arrays, steps):
        """Brings the input to a place, and Keras with it. Returns the steps that `steps` has begun meanwhile.

        The global random generators are left where the epoch's order was drawn.

        Args:
            state: the place, which `state` returned.
            arrays: those of the worker's part of the backup.
            steps: Keras' enumeration of the epoch's steps, which has not begun.
        """
        self._states_to_repeat = {
            moment: _saved_random(moment, state, arrays) for moment in (_MADE, _BEGUN) if moment in state
        }
        self._go_to_epoch(state)
        self.begin_epoch()
        dropped, begun = 0, []
        while dropped < state["batch"]:
            step = next(steps, None)
            if step is None:
                raise _too_short(dropped, state["batch"])
            begin, end, iterator = step
            self._drop(iterator, end - begin + 1)
            dropped = end + 1
        if state["is_entered"] and not dropped:
            # Making an iterator may draw from a generator, whose state is put back after that.
            begun = list(itertools.islice(steps, 1))
        self._states_to_repeat = {}
        return begun

    def has(self, step):
        """Returns whether the input has the step that Keras is about to take.

        Only a length that nobody knows beforehand makes that a question, and TensorFlow's iterators do not tell.
        """
        iterator = step[2]
        if self.length is not None or not isinstance(iterator, _Iteration):
            return True
        return iterator.has_next()

    @property
    def length(self):
        """The number of batches of an epoch, None where that is not known beforehand."""
        return self._iterator.steps_per_epoch or self._iterator.data_adapter.num_batches

    def _go_to_epoch(self, state):
        if self._is_traced_arrays() and state["seed"] != _tensorflow_seed():
            self._trace_again(state["seed"])
        past, last = state["read"], 0
        if state["continues"]:
            past, last = past[:-1], past[-1]
        for count in past[len(self._read) :]:
            self._repeat_iteration(count)
        self._read[:] = past
        if self._iterator._num_batches is None:
            self._iterator._num_batches = state["num_batches"]
        if state["continues"]:
            self._iterator._current_iterator = iter(self._iterator._get_iterator())
            self._iterator._steps_seen = state["steps_seen"]
            self._drop(self._iterator._current_iterator, last)

    def _drop(self, iterator, count):
        for dropped in range(count):
            try:
                next(iterator)
            except StopIteration:
                raise _too_short(dropped, count) from None
        self.took(count)

    def _repeat_iteration(self, count):
        """Begins an iteration as an earlier one was begun, for what that does to the following ones."""
        dataset = self._dataset()
        if dataset is None:
            return
        iterator = iter(getattr(self._iterator, "_distributed_dataset", dataset))
        if pipelines.depends_on_reading(dataset):
            for _ in range(count):
                next(iterator, None)

    def _follow_iterations(self):
        original = self._iterator._get_iterator

        def get_iterator():
            self._states = {}
            self._reach(_MADE)
            if hasattr(self._iterator, "_distributed_dataset"):
                # TensorFlow's steps take nothing but the iterator of a dataset.
                self._read.append(0)
                return original()
            return _Iteration(original(), self._begin_iteration)

        self._iterator._get_iterator = get_iterator

    def _begin_iteration(self):
        self._reach(_BEGUN)
        self._read.append(0)

    def _reach(self, moment):
        if moment in self._states_to_repeat:
            random_state.set_global(*self._states_to_repeat[moment])
        self._states[moment] = random_state.of_globals()

    def _dataset(self):
        """Returns the `tf.data.Dataset` that the user passed, or None."""
        adapter = self._adapter()
        return adapter._dataset if isinstance(adapter, TFDatasetAdapter) else None

    def _adapter(self):
        adapter = self._iterator.data_adapter
        return getattr(adapter, "inner", adapter)

    def _is_traced_arrays(self):
        """Whether the input is arrays whose order is drawn inside a traced pipeline, by TensorFlow's seed."""
        return isinstance(self._adapter(), ArrayDataAdapter) and hasattr(
            self._iterator, "_distributed_dataset"
        )

    def _trace_again(self, seed):
        import tensorflow as tf

        tf.random.set_seed(seed)
        iterator = self._iterator
        dataset = iterator.data_adapter.get_tf_dataset()
        iterator._distributed_dataset = iterator._distribute_strategy.experimental_distribute_dataset(dataset)


class _Iteration:
    """An iterator over batches that tells when its first batch is asked for.

    Args:
        batches: an iterable of batches.
        on_begin: called just before the first one is asked for.
    """

    def __init__(self, batches, on_begin):
        self._batches = iter(batches)
        self._on_begin = on_begin
        self._has_begun = False
        self._ahead = []

    def __iter__(self):
        return self

    def __next__(self):
        if self._ahead:
            return self._ahead.pop()
        if not self._has_begun:
            self._has_begun = True
            self._on_begin()
        return next(self._batches)

    def has_next(self):
        """Returns whether there is another batch; it is read, and comes next."""
        if not self._ahead:
            try:
                self._ahead.append(next(self))
            except StopIteration:
                return False
        return True


def _saved_random(moment, state, arrays):
    prefix = f"position/{moment}/"
    return state[moment], {
        name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)
    }


def _too_short(dropped, wanted):
    return UsageError(
        f"The newest backup was made after {wanted} batches of an epoch, but the input has ended after {dropped}. "
        "Train with the same data and batch size, or give another location."
    )


def _tensorflow_seed():
    """Returns TensorFlow's global seed, or None where it has none or is not loaded."""
    if "tensorflow" not in sys.modules:
        return None
    from tensorflow.python.eager import context

    seed = context.context()._seed
    return None if seed is None else int(seed)
