"""The backups of one run, at one place: the newest whole one is what a restart goes on from."""

import errno
import os
import re
import secrets
import warnings
from collections.abc import Mapping, Sequence

from trireme.errors import BackupDamaged, BackupNotWritten, BackupStorageFull, BackupWarning, UsageError
from trireme.recovery.backup_file import MANIFEST_ENDING, read_backup, write_backup
from trireme.recovery.snapshot import Snapshot
from trireme.recovery.store import Store, open_store

_FILE_NAME = re.compile(r"(?P<backup>backup-\d{8}-[0-9a-f]{8})\.(manifest|data)(\.partial)?")
# RLIMIT_FSIZE and the largest file of a file system report EFBIG.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Backups:
    """Backups at `location`, a folder or what `fsspec` opens, of which the newest `keep` whole ones are kept.

    Names count up (`backup-00000007-3fa2c1d0`), so that the newest is known without a clock. The second half
    is the writer's own: if a predecessor that was believed dead still writes, the two do not touch each
    other's files.
    """

    def __init__(self, location: str | os.PathLike[str] | Store, keep: int = 3):
        if keep < 1:
            raise UsageError(f"keep={keep} backups would leave none to restart from; keep at least 1.")
        self._store = open_store(location) if isinstance(location, str | os.PathLike) else location
        self._keep = keep
        self._writer = secrets.token_hex(4)
        self._passed_over: set[str] = set()

    @property
    def location(self) -> str:
        """Where the backups are, as the user wrote it."""
        return self._store.location

    @property
    def store(self) -> Store:
        """The place itself, for whoever has to touch single files."""
        return self._store

    def names(self) -> list[str]:
        """Return the names of all finished backups, damaged ones included, oldest first."""
        return _finished(self._files())

    def save(self, snapshot: Snapshot) -> str:
        """Store the snapshot and return the backup's name, then remove those that are too old.

        `BackupStorageFull` or `BackupNotWritten` if it cannot be stored; the others are untouched then.
        """
        try:
            names = self.names()
            name = f"backup-{_number(names[-1]) + 1 if names else 1:08d}-{self._writer}"
            write_backup(self._store, name, snapshot)
        except OSError as error:
            raise self._not_written(snapshot, error) from error
        self._remove_old(name)
        return name

    def load(self, name: str) -> Snapshot:
        """Return the backup of that name; `BackupDamaged` if it is not there or not whole."""
        return read_backup(self._store, name)

    def load_newest(self) -> Snapshot | None:
        """Return the newest whole backup, or None where no backup was ever finished.

        Newer ones that are not whole are passed over, each with a `BackupWarning`. `BackupDamaged` if there
        are backups and none is whole.
        """
        files = self._files()
        reasons = {name: f"{name}: it is half-written (it has no manifest)" for name in _unfinished(files)}
        for name in reversed(_finished(files)):
            try:
                snapshot = self.load(name)
            except BackupDamaged as error:
                reasons[name] = str(error)
                self._passed_over.add(name)
            else:
                newer = [reason for other, reason in reasons.items() if other > name]
                self._warn_of(newer, f"Going on from {name} (epoch {snapshot.epoch}, step {snapshot.step})")
                return snapshot
        self._refuse_to_forget(files, reasons)
        self._warn_of(list(reasons.values()), "No backup was finished yet: starting from the beginning")
        return None

    def _refuse_to_forget(self, files: Mapping[str, set[str]], reasons: Mapping[str, str]) -> None:
        """Raise if something was backed up once. A half-written first backup is all that a run leaves that
        was ended before it had one; and it is the first if it has the number 1, which is given only while
        none is finished."""
        if not _finished(files) and all(_number(name) == 1 for name in files):
            return
        listed = "".join(f"\n  {reason}" for reason in reasons.values())
        raise BackupDamaged(
            f"No backup in {self.location} is whole:{listed}\n"
            "To start from the beginning, remove these files or give another location."
        )

    def _warn_of(self, reasons: Sequence[str], what_follows: str) -> None:
        for reason in reasons:
            message = f"A backup in {self.location} is passed over. {reason}. {what_follows}."
            warnings.warn(message, BackupWarning, stacklevel=3)

    def _files(self) -> dict[str, set[str]]:
        """Return the file names of each backup by its name, oldest first."""
        files: dict[str, set[str]] = {}
        for match in map(_FILE_NAME.fullmatch, sorted(self._store.names())):
            if match:
                files.setdefault(match["backup"], set()).add(match[0])
        return files

    def _remove_old(self, newest: str) -> None:
        """Keep the newest whole ones. One that was found damaged does not count as kept; it goes when it is
        old enough."""
        try:
            files = self._files()
            whole = [name for name in _finished(files) if name not in self._passed_over]
            oldest_kept = _number(min([newest, *whole[-self._keep :]]))
            # Of the same number as the newest is the backup that another writer is in the middle of.
            abandoned = [name for name in _unfinished(files) if _number(name) < _number(newest)]
            for name in {*abandoned, *(name for name in files if _number(name) < oldest_kept)}:
                self._remove(files[name])
        except OSError as error:
            message = f"Old backups in {self.location} could not be removed, and take room: {error}."
            warnings.warn(message, BackupWarning, stacklevel=3)

    def _remove(self, files: set[str]) -> None:
        """The manifest goes first, so that an interrupted removal leaves nothing that looks whole."""
        for file in sorted(files, key=lambda file: not file.endswith(MANIFEST_ENDING)):
            self._store.delete(file)

    def _not_written(self, snapshot: Snapshot, error: OSError) -> BackupNotWritten:
        what = f"The backup of epoch {snapshot.epoch}, step {snapshot.step}"
        what += f" could not be stored in {self.location}"
        if error.errno in _NO_ROOM:
            return BackupStorageFull(
                f"{what}: there is no room for it ({error}). Earlier backups are untouched. "
                f"Free some space, or keep fewer than {self._keep}."
            )
        return BackupNotWritten(f"{what}: {error}. Earlier backups are untouched.")


def _finished(files: Mapping[str, set[str]]) -> list[str]:
    return [name for name, of_backup in files.items() if name + MANIFEST_ENDING in of_backup]


def _unfinished(files: Mapping[str, set[str]]) -> list[str]:
    return [name for name, of_backup in files.items() if name + MANIFEST_ENDING not in of_backup]


def _number(name: str) -> int:
    return int(name.split("-")[1])
