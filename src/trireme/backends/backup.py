"""The callback behind `trireme.BackupAndRestore`."""

import collections
import contextlib
import os
import sys

import keras
import numpy as np

from trireme.backends import accumulators, fitting, run_state
from trireme.backends.preemption import Preemption
from trireme.errors import EXIT_TERMINATED, BackupNotWritten, UsageError
from trireme.recovery.backups import Backups
from trireme.recovery.packing import pack, unpack
from trireme.recovery.snapshot import Snapshot
from trireme.recovery.writer import BackupWriter

# Broadcasts go in pieces of one size, since JAX compiles one for each size.
_PIECE_BYTES = 16 << 20

# Functions that are called with the `Backups` before the chief reads them: the entrance of fault plans.
reading_listeners = []

# By location, the calls of `fit` in this process that are over.
_num_finished = collections.Counter()


class BackupAndRestore(keras.callbacks.Callback):
    """Backs a training up, and goes on from the newest backup when the program is started again.

    `trireme.BackupAndRestore` says what users get. A backup is always the state just before a step, after all
    callbacks have begun the step's epoch, and there it is put back: whatever those callbacks do when they
    begin that epoch once more is undone.
    """

    def __init__(self, location, save_freq="epoch", keep=3):
        super().__init__()
        is_count = isinstance(save_freq, int) and not isinstance(save_freq, bool) and save_freq >= 1
        if save_freq != "epoch" and not is_count:
            raise UsageError(
                f"save_freq is {save_freq!r}; it can be 'epoch' or a number of steps, 1 or more."
            )
        self.location = os.fspath(location)
        self.save_freq = save_freq
        self.keep = keep
        # A place that cannot be opened, or nothing to keep, is told before anything is trained.
        self._backups = Backups(self.location, keep)

    def on_train_begin(self, logs=None):
        fit = fitting.current_fit()
        if fit is None or fit.backup is not self:
            raise UsageError(
                "BackupAndRestore was given to the `fit` of a model that no strategy has. Make or compile the model "
                "in a strategy's scope; to train as without one: `with trireme.OneDeviceStrategy().scope():`."
            )

    @contextlib.contextmanager
    def training(self, fit):
        """Surrounds one call of `fit`. What was submitted is stored, however that ends."""
        self._backups = Backups(self._location_of_this_fit(), self.keep)
        self._writer = BackupWriter(self._backups)
        self._found, self._saved_step, self._is_leaving = None, 0, False
        initial_epoch = fit.model._initial_epoch
        try:
            with Preemption(fit.backend) as self._preemption:
                yield
        except BaseException:
            with contextlib.suppress(BackupNotWritten):
                self._writer.close()
            raise
        finally:
            fit.model._initial_epoch = initial_epoch
        self._writer.close()

    def begin(self, fit):
        """Reads the newest backup, and gives the model its values at once, for whoever looks at them."""
        fit.position.begin(fit.backend)
        found = self._found = self._read(fit.backend)
        if found is None:
            return
        self._check(fit)
        run_state.build(fit.model, fit.epoch_iterator)
        # The backup holds the sum of what the workers had accumulated.
        accumulators.make_global(fit.model, fit.backend)
        run_state.set_variables(fit.model, found, self._backups.location)
        fit.step = self._saved_step = found.state["steps"]
        fit.model._initial_epoch = sys.maxsize if found.state["is_stopped"] else found.epoch
        self._tell(fit, _where_it_goes_on(found))

    def enter_epoch(self, fit, steps):
        """Goes to the place of the backup, in the first epoch after it was found; or saves between two epochs.

        Args:
            fit: the `Fit`.
            steps: Keras' enumeration of the epoch's steps, which has not begun.

        Returns:
            The steps that were begun meanwhile: they come first.
        """
        begun = []
        if self._found is not None:
            found, self._found = self._found, None
            own = run_state.part_of(found, fit.backend.cluster.rank)
            begun = fit.position.return_to(own.state["position"], own.arrays, steps)
            self._put_back(fit, found)
            if fit.position.length is None:
                run_state.let_an_epoch_end_without_steps(fit.model)
        elif self.save_freq == "epoch" and fit.step > self._saved_step:
            self._save(fit, is_entered=False)
        return begun

    def before_step(self, fit, step):
        """Saves when it is time to, and ends the process when somebody has asked for that."""
        is_due = self.save_freq != "epoch" and fit.step - self._saved_step >= self.save_freq
        self._is_leaving = self._is_leaving or self._preemption.is_agreed(fit.step)
        # After the last step of an epoch there would be none to come back to. The next epoch's first is near.
        if not (is_due or self._is_leaving) or not fit.position.has(step):
            return
        if fit.step > self._saved_step:
            self._save(fit, is_entered=True)
        if self._is_leaving:
            self._leave(fit)

    def end(self, fit):
        """Stores the trained model, so that a program that is started again does not train it again."""
        found, self._found = self._found, None
        _num_finished[self.location] += 1
        if found is not None:
            # There was nothing left to train, and Keras has begun and ended a history without epochs.
            self._put_back(fit, found)
        elif fit.step > 0:
            fit.epoch, fit.batch = fit.epoch + 1, 0
            fit.position.begin_epoch()
            self._save(fit, is_entered=False, is_finished=True)
        if self._is_leaving or self._preemption.is_agreed_now(fit.step):
            # What the program does with the trained model comes at the next start, which finds it trained.
            self._leave(fit)

    def _location_of_this_fit(self):
        """A program may call `fit` several times: each has a place of its own, the first the one it was given."""
        number = _num_finished[self.location]
        return self.location if number == 0 else f"{self.location.rstrip('/')}/fit-{number}"

    def _read(self, backend):
        found = None
        if backend.cluster.is_chief:
            for listener in reading_listeners:
                listener(self._backups)
            found = self._backups.load_newest()
        return found if backend.cluster.num_workers == 1 else _broadcast(found, backend)

    def _check(self, fit):
        made_by, used = self._found.state["backend"], keras.backend.backend()
        if made_by != used:
            raise UsageError(
                f"The newest backup in {self._backups.location} was made with the {made_by} backend, and this is "
                f"{used}. Set KERAS_BACKEND={made_by}, or give another location."
            )
        own = run_state.part_of(self._found, fit.backend.cluster.rank)
        fit.position.check(own.state["position"], self._backups.location)

    def _put_back(self, fit, found):
        # The backup holds the sum of what the workers had accumulated.
        accumulators.make_global(fit.model, fit.backend)
        run_state.set_variables(fit.model, found, self._backups.location)
        run_state.set_callbacks(fit.callbacks, found)
        run_state.set_history(fit.model, found)
        run_state.set_own_state(fit.model, fit.backend, found)

    def _save(self, fit, is_entered, is_finished=False):
        self._saved_step = fit.step
        fit.backend.wait_for_steps(fit.model)
        if hasattr(fit.model, "jax_state_sync"):
            # Between two steps JAX's trainer holds the values, not the variables.
            fit.model.jax_state_sync()
        accumulators.make_global(fit.model, fit.backend)
        own = run_state.own_state(fit.model, fit.position.state(fit.batch, is_entered))
        parts = [own]
        if fit.backend.cluster.num_workers > 1:
            gathered = fit.backend.all_gather(np.frombuffer(pack(own), np.uint8))
            parts = [unpack(packed.tobytes()) for packed in gathered]
        if not fit.backend.cluster.is_chief:
            return
        state, arrays = run_state.common_state(fit.model, fit.callbacks)
        state |= {
            "backend": keras.backend.backend(),
            "steps": fit.step,
            "is_finished": is_finished,
            "is_stopped": is_finished and bool(fit.model.stop_training),
        }
        run_state.add_parts(parts, state, arrays)
        self._writer.submit(Snapshot(fit.epoch, fit.batch, arrays, state))

    def _leave(self, fit):
        self._writer.close()
        saved = "saved" if self._writer.has_room else "there was no room to save"
        self._tell(fit, f"{saved} before step {fit.step} on SIGTERM; start again to go on")
        # All together, as after a run that has ended well: whoever went first would take the others' runtime along,
        # and a step that still goes on would lose it.
        fit.backend.wait_for_steps(fit.model)
        fit.backend.stop()
        raise SystemExit(EXIT_TERMINATED)

    def _tell(self, fit, text):
        if fit.backend.cluster.is_chief:
            print(f"trireme: {text} ({self._backups.location})", file=sys.stderr, flush=True)


def _where_it_goes_on(found):
    done = f"epoch {found.epoch}, batch {found.step}, after {found.state['steps']} steps"
    if found.state["is_stopped"]:
        return f"{found.name} holds a training that was stopped for good after {found.epoch} epochs"
    if found.state["is_finished"]:
        return f"{found.name} holds a training of {found.epoch} epochs; only later ones are left to train"
    return f"going on from {found.name}: {done}"


def _broadcast(snapshot, backend):
    """Gives every worker the chief's snapshot, or None."""
    packed = b"" if snapshot is None else pack(snapshot)
    length = int(backend.broadcast(np.array(len(packed), np.int64)))
    received = bytearray(length)
    for start in range(0, length, _PIECE_BYTES):
        piece = np.zeros(min(_PIECE_BYTES, length), np.uint8)
        mine = np.frombuffer(packed[start : start + _PIECE_BYTES], np.uint8)
        piece[: len(mine)] = mine
        end = min(start + _PIECE_BYTES, length)
        received[start:end] = backend.broadcast(piece)[: end - start].tobytes()
    return unpack(bytes(received)) if length else None
