"""One call of `fit`, and the moment before each of its steps.

Keras asks its epoch iterator for the next step in the thread that trains, on every backend and for every kind of
input, after all callbacks of the step before. There the progress board learns of the step, and there a run
is backed up and stopped. Batch callbacks could do neither: one that has them makes Keras run all callbacks
in step with the training, and they see a batch that exists only half of the time.
"""

import contextlib
import contextvars
import functools
import inspect
import os

import keras
import numpy as np
from keras.src.trainers.epoch_iterator import EpochIterator

from trireme.backends import load
from trireme.backends.data_position import DataPosition
from trireme.errors import UsageError

BACKUP_VARIABLE = "TRIREME_BACKUP"
BACKUP_EVERY_VARIABLE = "TRIREME_BACKUP_EVERY"

# Functions that are called with the `Fit` just before each step: the entrance of fault plans.
step_listeners = []

_current = contextvars.ContextVar("trireme_fit", default=None)


@functools.cache
def install():
    """Lets Keras' `fit` and its epoch iterators tell when they begin. Harmless to repeat."""
    keras.Model.fit = _watched(keras.Model.fit)
    EpochIterator.__init__ = _then_follow(EpochIterator.__init__)


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
        enumerate_steps = epoch_iterator._enumerate_iterator
        epoch_iterator._enumerate_iterator = lambda: self._steps(enumerate_steps)

    def begin(self):
        """All callbacks have begun."""
        self._has_begun = True
        self._agree_on_backup()
        if self.backup is not None:
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
        if self.backup is not None:
            self.backup.enter_epoch(self, steps)
        for step in steps:
            self.batch = step[0]
            step = self._before(step)
            yield step
            self.position.took(step[1] - step[0] + 1)
            self.step += step[1] - step[0] + 1
        self.backend.wait_for_steps(self.model)

    def _before(self, step):
        self.backend.begin_step(self.model, self.step)
        if self.backup is not None:
            step = self.backup.before_step(self, step)
        for listener in step_listeners:
            listener(self)
        return step

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


def _watched(original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self, *args, **kwargs):
        arguments = signature.bind(self, *args, **kwargs).arguments
        callbacks = arguments.get("callbacks")
        is_list_of_keras = isinstance(callbacks, keras.callbacks.CallbackList)
        listed = callbacks.callbacks if is_list_of_keras else keras.tree.flatten(callbacks or [])
        call = Fit(self, listed, load(keras.backend.backend()), _backup_of(listed))
        ends = _Ends(call)
        if is_list_of_keras:
            callbacks.append(ends)
        else:
            arguments["callbacks"] = [*listed, ends]
        token = _current.set(call)
        try:
            with contextlib.nullcontext() if call.backup is None else call.backup.training(call):
                return original(**arguments)
        finally:
            _current.reset(token)
            if is_list_of_keras:
                callbacks.callbacks.remove(ends)

    return fit


def _then_follow(original):
    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        call = _current.get()
        if call is not None and call.position is None:
            call.follow(self)

    return __init__


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
