"""Callbacks on several workers: one side effect, one decision, the same logs.

Callbacks run on every worker, since their decisions change the training. Those that only write or print run on
the chief. Whoever stops the training, stops it for all at the same step.
"""

import keras
import numpy as np
from keras.src.utils import is_default

from trireme.backends import accumulators, metric_checks, metrics
from trireme.backends.model_state import broadcast_state, take_chiefs_seeds

CHIEF_ONLY = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.ProgbarLogger,
)

_BATCH_HOOKS = ("on_train_batch_end", "on_batch_end", "on_test_batch_end", "on_predict_batch_end")
_STOPS = {"train": "stop_training", "test": "stop_evaluating", "predict": "stop_predicting"}


def for_this_worker(callbacks, backend, during_fit):
    """Returns the callbacks that run on this worker, with ours around them.

    Args:
        callbacks: what the user passed: None, a callback, or a list of them.
        backend: the backend, for the exchange among workers.
        during_fit: whether they are `fit`'s, which starts from the chief's state.
    """
    users = keras.tree.flatten(callbacks) if callbacks is not None else []
    watches_batches = any(_watches_batches(callback) for callback in users)
    # A callback that only one worker has makes all of them exchange, or the others would not answer.
    watches_batches = bool(backend.all_reduce(np.array([watches_batches], np.int32), "max")[0])
    if not backend.cluster.is_chief:
        users = [callback for callback in users if not isinstance(callback, CHIEF_ONLY)]
    first = _GlobalBatchLogs if watches_batches else _LocalBatchLogs
    last = _Agreement(backend, watches_batches, during_fit)
    return [first(backend), *users, last]


def _watches_batches(callback):
    if isinstance(callback, CHIEF_ONLY):
        # These have the hooks in any case, and use them when they are told to write within an epoch.
        frequency = getattr(callback, "save_freq", getattr(callback, "update_freq", "epoch"))
        return frequency != "epoch"
    return any(not is_default(getattr(callback, hook)) for hook in _BATCH_HOOKS)


class _LocalBatchLogs(keras.callbacks.Callback):
    """Comes first: each worker's metrics and accumulators hold what comes of its own rows during the epoch."""

    def __init__(self, backend):
        super().__init__()
        self._backend = backend

    def on_train_batch_begin(self, batch, logs=None):
        metric_checks.refuse_mistakes(self.model)
        metrics.make_local(self.model, self._backend)
        accumulators.make_local(self.model, self._backend)

    def on_test_batch_begin(self, batch, logs=None):
        metric_checks.refuse_mistakes(self.model)

    def on_epoch_end(self, epoch, logs=None):
        # Before callbacks that save the model.
        accumulators.make_global(self.model, self._backend)


class _GlobalBatchLogs(_LocalBatchLogs):
    """Comes first where somebody reads the logs of batches: puts those of all workers in their place."""

    def on_train_batch_end(self, batch, logs=None):
        self._put_global(logs)
        accumulators.make_global(self.model, self._backend)

    def on_test_batch_end(self, batch, logs=None):
        self._put_global(logs)

    def _put_global(self, logs):
        if logs:
            logs.update(self.model._get_metrics_result_or_logs(dict(logs)))
            for name, value in logs.items():
                if not isinstance(value, float):
                    logs[name] = float(keras.ops.convert_to_numpy(value))


class _Agreement(keras.callbacks.Callback):
    """Comes last: all workers start from the chief's state and stop at the same step."""

    def __init__(self, backend, watches_batches, during_fit):
        super().__init__()
        self._backend = backend
        self._during_fit = during_fit
        if watches_batches:
            # Only then, since Keras runs callbacks beside the training while nobody has these hooks.
            self.on_train_batch_end = lambda batch, logs=None: self._agree("train")
            self.on_test_batch_end = lambda batch, logs=None: self._agree("test")
            self.on_predict_batch_end = lambda batch, logs=None: self._agree("predict")

    def on_train_begin(self, logs=None):
        if self._during_fit:
            # After the user's callbacks, one of which may have restored the chief's state from a file.
            broadcast_state(self.model, self._backend, always=True)
            initial_epoch = self._backend.broadcast(np.array([self.model._initial_epoch or 0], np.int64))
            self.model._initial_epoch = int(initial_epoch[0]) or None

    def on_epoch_end(self, epoch, logs=None):
        self._agree("train")

    def on_train_end(self, logs=None):
        take_chiefs_seeds(self.model, self._backend)

    def _agree(self, phase):
        wish = bool(getattr(self.model, _STOPS[phase]))
        if self._backend.all_reduce(np.array([wish], np.int32), "max")[0]:
            setattr(self.model, _STOPS[phase], True)
