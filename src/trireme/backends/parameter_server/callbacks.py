"""Callbacks of an asynchronous run: the chief writes, prints and decides, the others follow it from epoch to epoch."""

import keras
import numpy as np

from trireme.backends.callbacks import CHIEF_ONLY


def for_this_worker(callbacks, follower, is_chief):
    """Returns the callbacks that run on this worker; `follower` comes last."""
    users = keras.tree.flatten(callbacks) if callbacks is not None else []
    if not is_chief:
        users = [callback for callback in users if not isinstance(callback, CHIEF_ONLY)]
    return [_UnknownLength(), *users, follower]


class _UnknownLength(keras.callbacks.Callback):
    """Comes first: nobody knows how many of an epoch's steps a worker gets."""

    def set_params(self, params):
        # The same dict for all callbacks after this one.
        params["steps"] = None
        super().set_params(params)


class Follower(keras.callbacks.Callback):
    """Takes a worker from epoch to epoch with the chief.

    Args:
        exchange: the `Exchange`.
        begin: function that begins the round of an epoch and returns False if the training is over before.
        plan: the `Plan` of this `fit`.
    """

    def __init__(self, exchange, begin, plan):
        super().__init__()
        self._exchange = exchange
        self._begin = begin
        self._plan = plan
        self._learning_rate = None

    def on_train_begin(self, logs=None):
        self._learning_rate = self._current_learning_rate()

    def on_epoch_begin(self, epoch, logs=None):
        if not self._exchange.is_chief:
            return
        learning_rate = self._current_learning_rate()
        if learning_rate != self._learning_rate:
            self._learning_rate = learning_rate
            self._exchange.configure({"learning_rate": learning_rate})
        # After the servers have the rate, since other workers wait for this.
        self._begin(self._plan.next_epoch)

    def on_epoch_end(self, epoch, logs=None):
        if not self._exchange.is_chief and self._plan.epochs_left and not self.model.stop_training:
            self.model.stop_training = not self._plan.begin_next(self._begin)

    def _current_learning_rate(self):
        rate = self.model.optimizer._learning_rate
        is_variable = isinstance(rate, keras.Variable)
        return float(np.asarray(keras.ops.convert_to_numpy(rate))) if is_variable else None
