"""Callbacks of an asynchronous run: the chief writes, prints and decides, the others follow it from epoch to epoch."""

import keras

from trireme.backends.backup import BackupAndRestore
from trireme.backends.callbacks import CHIEF_ONLY
from trireme.backends.parameter_server.description import learning_rate_of
from trireme.errors import UsageError

_WHY_NOT = {
    (BackupAndRestore, keras.callbacks.BackupAndRestore): (
        "backs up what workers hold, but the weights and the optimizer are on the servers, which keep snapshots in the "
        "folder TRIREME_SNAPSHOTS. Leave it out; ModelCheckpoint saves the weights for use elsewhere."
    ),
    (keras.callbacks.SwapEMAWeights,): (
        "swaps averages that workers do not have: they are on the servers. Leave it out; with use_ema the averages "
        "become the weights at the end of `fit`."
    ),
}


def users_callbacks(callbacks):
    """Returns the list of what the user passed as `callbacks`.

    Raises:
        UsageError: one cannot do its work with parameter servers.
    """
    users = keras.tree.flatten(callbacks) if callbacks is not None else []
    for callback in users:
        for kinds, why in _WHY_NOT.items():
            if isinstance(callback, kinds):
                raise UsageError(f"With ParameterServerStrategy, {type(callback).__name__} {why}")
    return users


def for_this_worker(users, follower, is_chief):
    """Returns the callbacks that run on this worker; `follower` comes last."""
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
        take_newest: function that gives the model the newest weights.
        plan: the `Plan` of this `fit`.
    """

    def __init__(self, exchange, begin, take_newest, plan):
        super().__init__()
        self._exchange = exchange
        self._begin = begin
        self._take_newest = take_newest
        self._plan = plan

    def on_epoch_begin(self, epoch, logs=None):
        if self._exchange.is_chief:
            self._open()
        if not self._exchange.leads(self._plan.training_round(self._plan.next_epoch)):
            # What callbacks have set on the chief is on the servers now; what they have set here does not count.
            self._take_newest()

    def _open(self):
        learning_rate = learning_rate_of(self.model.optimizer)
        if learning_rate != self._exchange.learning_rate:
            self._exchange.configure({"learning_rate": learning_rate})
            self._exchange.learning_rate = learning_rate
        # After the servers have the rate, since other workers wait for this.
        self._begin(self._plan.next_epoch)

    def on_epoch_end(self, epoch, logs=None):
        if not self._exchange.is_chief and self._plan.epochs_left and not self.model.stop_training:
            self.model.stop_training = not self._plan.begin_next(self._begin)
