"""SIGTERM during a training: a wish to stop, on which all workers agree at one step."""

import os
import signal
import threading
import time

import numpy as np

_AGREE_EVERY_S = 0.5


class Preemption:
    """Whether somebody asked this process, or another worker, to end. Entered, it receives SIGTERM.

    Workers may hear of it at different steps, or only one of them does, so they ask each other; not at every
    step, but about every half second, which costs next to nothing. The steps from one question to the next at most
    double, since a few short steps promise nothing about those to come.
    """

    def __init__(self, backend):
        self._backend = backend
        self._is_wished = False
        self._next_step = 0
        self._interval = 1
        self._asked_s = None
        self._previous = None
        self._receives = False

    def __enter__(self):
        # Python lets only the main thread receive signals.
        self._receives = threading.current_thread() is threading.main_thread()
        if self._receives:
            self._previous = signal.signal(signal.SIGTERM, self._receive)
        return self

    def __exit__(self, *details):
        if self._receives:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)

    def is_agreed(self, step):
        """Returns whether all workers end before this step. All of them must ask for the same steps."""
        is_asked = self._backend.cluster.num_workers == 1 or step >= self._next_step
        return is_asked and self.is_agreed_now(step)

    def is_agreed_now(self, step):
        """Returns the same, and asks in any case."""
        if self._backend.cluster.num_workers == 1:
            return self._is_wished
        now_s = time.monotonic()
        since_s = 0.0 if self._asked_s is None else now_s - self._asked_s
        wish, since_s = self._backend.all_reduce(np.array([self._is_wished, since_s], np.float64), "max")
        self._asked_s = now_s
        if since_s < _AGREE_EVERY_S / 2:
            self._interval *= 2
        elif since_s > _AGREE_EVERY_S:
            self._interval = max(1, self._interval // 2)
        self._next_step = step + self._interval
        return bool(wish)

    def _receive(self, signum, frame):
        self._is_wished = True


def _leave_to_parent():
    """Lets a fork end by SIGTERM: those that read a `PyDataset` are ended so, and waited for."""
    if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), Preemption):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_leave_to_parent)
