"""Processes of a run whose parents have ended: a launcher that is nothing else adopts them."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trireme.launch import linux

_REAP_EVERY_S = 5.0
_GONE_WITHIN_S = 3.0
_LOOK_AGAIN_S = 0.02


class Orphans:
    """The children of this process that it has not started itself.

    Unless `adopted` is entered there are none, and every method does nothing.
    """

    def __init__(self) -> None:
        self._is_adopting = False
        self._own: set[int] = set()
        self._reaped_s = time.monotonic()

    @contextmanager
    def adopted(self) -> Iterator[None]:
        """Within it, processes whose parents end become children of this one, instead of the system's."""
        with linux.subreaper():
            self._is_adopting = True
            yield
            self._is_adopting = False

    def exclude(self, pid: int) -> None:
        """Says that a child is no orphan: it was started here."""
        self._own.add(pid)

    def reap(self) -> None:
        """Lets go of those that have ended; looks every few seconds only, so it may be called all the time."""
        if time.monotonic() - self._reaped_s > _REAP_EVERY_S:
            for pid in self._living_and_dead():
                _reap(pid)
            self._reaped_s = time.monotonic()

    def kill(self) -> None:
        """Kills all of them. Only they can have shed the mark by which the run's other processes are known."""
        give_up = time.monotonic() + _GONE_WITHIN_S
        while (orphans := self._living_and_dead()) and time.monotonic() < give_up:
            for pid in orphans:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _reap(pid)
            time.sleep(_LOOK_AGAIN_S)

    def _living_and_dead(self) -> set[int]:
        return set(linux.children_of(os.getpid())) - self._own if self._is_adopting else set()


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
