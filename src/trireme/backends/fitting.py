"""One call of `fit`, and the moment before each of its steps.

Keras asks its epoch iterator for the next step in the thread that trains, on every backend and for every kind of
input, after all callbacks of the step before. There the progress board learns of the step, and there a run
is backed up and stopped. Batch callbacks could do neither: one that has them makes Keras run all callbacks
in step with the training, and they see a batch that exists only half of the time.

The iterator is met where `fit` shows it to the model, to build by it; that method is bound on the model for as long.
"""

import contextlib
import contextvars
import functools
import itertools
import os

import keras
import numpy as np
from keras.src.trainers.epoch_iterator import EpochIterator

from trireme.backends.data_position import DataPosition
from trireme.errors import UsageError

BACKUP_VARIABLE = "TRIREME_BACKUP"
BACKUP_EVERY_VARIABLE = "TRIREME_BACKUP_EVERY"

# Functions that are called with the `Fit` just before each step: the entrance of fault plans.
step_listeners = []

# What Keras calls with the epoch iterator it has made; which of them depends on the backend.
_SHOWN_THE_ITERATOR = ("_symbolic_build", "_maybe_symbolic_build")

_current = contextvars.ContextVar("trireme_fit", default=None)


def current_fit():
    """Returns the `Fit` that goes on in this context, or None."""
    return _current.get()


@contextlib.contextmanager
def followed(model, backend, arguments):
    """Surrounds a call of Keras' `fit`.

    Args:
        model: a `keras.Model`.
        backend: the `Backend` of this process.
        arguments: those of `fit`, by name; the callbacks among them get one more.
    """
    callbacks = arguments.get("callbacks")
    is_list_of_keras = isinstance(callbacks, keras.callbacks.CallbackList)
    listed = callbacks.callbacks if is_list_of_keras else keras.tree.flatten(callbacks or [])
    fit = Fit(model, listed, backend, _backup_of(listed))
    ends = _Ends(fit)
    if is_list_of_keras:
        callbacks.append(ends)
    else:
        arguments["callbacks"] = [*listed, ends]
    token = _current.set(fit)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_meeting_the_iterator(fit))
            if fit.backup is not None:
                stack.enter_context(fit.backup.training(fit))
            yield
    finally:
        _current.reset(token)
        if is_list_of_keras:
            callbacks.callbacks.remove(ends)


class Fit:
    """One call of `fit`.

    Attributes:
        model: the `keras.Model`.
        callbacks: the callbacks of this worker, without those that Keras adds.
        backend: the `Backend` of this process.
        position: the `DataPosition` of the training data.
        epoch: the epoch that goes on.
        batch: the batches of that epoch that were trained.
        step: the steps of the whole run that were trained, over all epochs.
    """

    def __init__(self, model, callbacks, backend, backup):
        self.model = model
        self.callbacks = callbacks
        self.backend = backend
        self.backup = backup
        self.position = None
        self.epoch_iterator = None
        self.epoch = 0
        self.batch = 0
        self.step = 0
        self._has_begun = False

    def follow(self, epoch_iterator):
        """Takes the training data's iterator, the first that is made within `fit`."""
        self.epoch_iterator = epoch_iterator
        self.position = DataPosition(epoch_iterator)
        self.backend.begin_fit(_rows_per_step(epoch_iterator.data_adapter))
        enumerate_steps = epoch_iterator._enumerate_iterator
        epoch_iterator._enumerate_iterator = lambda: self._steps(enumerate_steps)

    def begin(self):
        """All callbacks have begun."""
        self._has_begun = True
        self._agree_on_backup()
        if self.backup is None:
            return
        if self.position is None:
            raise UsageError(
                f"The `fit` of {type(self.model).__name__} does not go through Keras' own, so BackupAndRestore cannot "
                "know where it is in its data. Call `super().fit(...)` in it, or save by `model.save` yourself."
            )
        self.backup.begin(self)

    def end(self):
        """All callbacks have ended, and the training is over."""
        if self.backup is not None:
            self.backup.end(self)

    def _steps(self, enumerate_steps):
        steps = enumerate_steps()
        if not self._has_begun:
            # Keras looks at a batch to build the model by it.
            yield from steps
            return
        self.batch = 0
        self.position.begin_epoch()
        begun = [] if self.backup is None else self.backup.enter_epoch(self, steps)
        for step in itertools.chain(begun, steps):
            self.batch = step[0]
            self._before(step)
            yield step
            self.position.took(step[1] - step[0] + 1)
            self.step += step[1] - step[0] + 1
        self.backend.wait_for_steps(self.model)

    def _before(self, step):
        self.backend.begin_step(self.model, self.step)
        if self.backup is not None:
            self.backup.before_step(self, step)
        for listener in step_listeners:
            listener(self)

    def _agree_on_backup(self):
        if self.backend.cluster.num_workers == 1:
            return
        answers = self.backend.all_gather(np.array([self.backup is not None], np.int32))
        if len({bool(answer[0]) for answer in answers}) > 1:
            without = [rank for rank, answer in enumerate(answers) if not answer[0]]
            raise UsageError(
                f"BackupAndRestore is not among the callbacks of worker {', '.join(map(str, without))}, but others "
                "have it. Give it to every worker: they save and stop together, and the chief alone writes."
            )


def _rows_per_step(adapter):
    """Returns the rows of the global batch, or None where the input does not tell."""
    # A dataset of unknown shapes, or an adapter of somebody else's, may have no answer; people only look at it.
    with contextlib.suppress(NotImplementedError, IndexError, ValueError):
        return adapter.batch_size
    return None


class _Ends(keras.callbacks.Callback):
    """Comes last, and tells a `Fit` what all callbacks have been told."""

    def __init__(self, fit):
        super().__init__()
        self._fit = fit

    def on_train_begin(self, logs=None):
        self._fit.begin()

    def on_epoch_begin(self, epoch, logs=None):
        self._fit.epoch = epoch

    def on_train_end(self, logs=None):
        self._fit.end()


@contextlib.contextmanager
def _meeting_the_iterator(fit):
    model = fit.model
    bound = [name for name in _SHOWN_THE_ITERATOR if hasattr(model, name) and name not in vars(model)]
    for name in bound:
        object.__setattr__(model, name, _then_built(getattr(model, name), fit))
    try:
        yield
    finally:
        for name in bound:
            object.__delattr__(model, name)


def _then_built(original, fit):
    @functools.wraps(original)
    def build(iterator=None, data_batch=None):
        if fit.position is None and isinstance(iterator, EpochIterator):
            fit.follow(iterator)
        return original(iterator=iterator, data_batch=data_batch)

    return build


def _backup_of(callbacks):
    """Returns the backup among the callbacks, or the one that `trireme run --backup` asks for, or None."""
    from trireme.backends.backup import BackupAndRestore

    found = [callback for callback in callbacks if isinstance(callback, BackupAndRestore)]
    if len(found) > 1:
        raise UsageError(f"{len(found)} BackupAndRestore are among the callbacks of one `fit`: pass one.")
    if found:
        return found[0]
    location = os.environ.get(BACKUP_VARIABLE)
    # A `fit` inside of another is a part of that one's step, and goes with it.
    if not location or _current.get() is not None:
        return None
    every = os.environ.get(BACKUP_EVERY_VARIABLE, "epoch")
    return BackupAndRestore(location, save_freq=every if every == "epoch" else int(every))
