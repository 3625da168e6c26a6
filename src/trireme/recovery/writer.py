"""Backups written in the background: training waits for a copy in memory, not for the storage."""

import atexit
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from trireme.errors import BackupNotWritten, BackupStorageFull, BackupWarning, UsageError
from trireme.recovery.backups import Backups
from trireme.recovery.snapshot import Snapshot

_LONGEST_WRITE_S = 600.0


@dataclass(frozen=True)
class _Submitted:
    """A snapshot on its way, and whether its arrays are the writer's own to use again."""

    snapshot: Snapshot
    is_ours: bool


class BackupWriter:
    """Writes snapshots to `backups` from one background thread.

    One snapshot is written while at most one waits. A newer one takes the place of the one that waits:
    training must not go at the pace of the storage, and of two states of a run nobody restarts from the
    older. The one being written is always finished, so a slow storage makes backups rarer, not absent.
    Memory: two copies of the arrays.

    A storage without room costs that backup and a `BackupWarning`. Any other error is raised as
    `BackupNotWritten` by the next `submit`, `flush` or `close`, whichever comes first.

    `has_room` says whether the last write found room, so that nobody believes to have saved what is not there.

    The thread touches no signal. Whatever a signal handler of the main thread does meanwhile, even if it
    raises out of `close`, the write goes on; and where the process is killed, the backup is simply not there.
    At the end of the interpreter what was submitted is still written, but only a caller of `close` learns of
    an error.
    """

    def __init__(self, backups: Backups):
        self.has_room = True
        self._backups = backups
        self._changed = threading.Condition()
        self._waiting: _Submitted | None = None
        self._in_work: _Submitted | None = None
        self._free_buffers: list[Mapping[str, np.ndarray]] = []
        self._error: Exception | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def submit(self, snapshot: Snapshot, copy: bool = True) -> None:
        """Have the snapshot written, and return as soon as it is copied.

        `copy=False` skips that for arrays that nobody will ever change, such as those just fetched from a
        GPU.
        """
        self._raise_error()
        if self._is_closed:
            raise UsageError(
                f"The writer of backups in {self._backups.location} is closed: submit before `close`."
            )
        if copy:
            submitted = _Submitted(snapshot.copy(into=self._take_buffers()), is_ours=True)
        else:
            submitted = _Submitted(snapshot, is_ours=False)
        with self._changed:
            self._waiting = submitted
            self._start_thread()
            self._changed.notify_all()

    def flush(self, timeout_s: float = _LONGEST_WRITE_S) -> None:
        """Return when everything submitted is stored; `BackupNotWritten` if it is not, or not in time."""
        with self._changed:
            if not self._changed.wait_for(self._is_idle, timeout_s):
                raise self._late(timeout_s)
        self._raise_error()

    def close(self, timeout_s: float = _LONGEST_WRITE_S) -> None:
        """Flush and end the thread; errors as in `flush`. A second call has nothing left to do."""
        try:
            self.flush(timeout_s)
        finally:
            # Also when a signal handler raised: the thread still writes what was submitted, and `atexit`
            # waits for it.
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join(timeout_s)

    def __enter__(self) -> "BackupWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take_buffers(self) -> Mapping[str, np.ndarray]:
        """Return memory to copy into: that of the snapshot about to be replaced, or of the last one
        written."""
        with self._changed:
            replaced, self._waiting = self._waiting, None
            if replaced is not None and replaced.is_ours:
                return replaced.snapshot.arrays
            return self._free_buffers.pop() if self._free_buffers else {}

    def _start_thread(self) -> None:
        if self._thread is None:
            # A daemon, because a thread that waits for work would keep a script that forgot `close` from
            # ending.
            self._thread = threading.Thread(target=self._run, name="trireme-backup", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def _run(self) -> None:
        while (submitted := self._take_work()) is not None:
            error = self._write(submitted.snapshot)
            with self._changed:
                self._error = error or self._error
                self._in_work = None
                if submitted.is_ours:
                    self._free_buffers.append(submitted.snapshot.arrays)
                self._changed.notify_all()
            # The loop's own reference would keep these arrays while the next ones are waited for.
            del submitted

    def _take_work(self) -> _Submitted | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._is_closed)
            self._in_work, self._waiting = self._waiting, None
            return self._in_work

    def _write(self, snapshot: Snapshot) -> Exception | None:
        """Return the error to raise at the next call. Any exception is caught: it would end the thread
        unseen."""
        try:
            self._save(snapshot)
        except Exception as error:
            return error
        return None

    def _save(self, snapshot: Snapshot) -> None:
        try:
            self._backups.save(snapshot)
            self.has_room = True
        except BackupStorageFull as error:
            self.has_room = False
            warnings.warn(f"{error} The run goes on without this backup.", BackupWarning, stacklevel=2)

    def _is_idle(self) -> bool:
        return self._waiting is None and self._in_work is None

    def _raise_error(self) -> None:
        with self._changed:
            error, self._error = self._error, None
        if isinstance(error, BackupNotWritten):
            raise error
        if error is not None:
            where = self._backups.location
            raise BackupNotWritten(f"A backup could not be stored in {where}: {error!r}.") from error

    def _late(self, timeout_s: float) -> BackupNotWritten:
        late = self._in_work or self._waiting
        assert late is not None, "a writer that is not idle has work"
        return BackupNotWritten(
            f"The backup of epoch {late.snapshot.epoch}, step {late.snapshot.step} is still being written to "
            f"{self._backups.location} after {timeout_s:g} s: is the storage slow, or does it not answer? "
            "Earlier backups are untouched."
        )
