"""What a server keeps on disk: snapshots of its weights, the journal of the rows that were handed out, and settings.

A snapshot is written aside, synced, and renamed, and ends with a digest of all that comes before, so that a
half-written or damaged one is noticed and passed over for the one before it.

    8 bytes "TRPSNAP1", 8 bytes length of the header (little endian), the header (JSON), the arrays one after the
    other as raw little-endian bytes, 32 bytes BLAKE2b of everything before
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trireme.errors import ConfigurationError
from trireme.parameter_server.dtypes import dtype_of
from trireme.parameter_server.gradients import NDArray

_MAGIC = b"TRPSNAP1"
_DIGEST_BYTES = 32
_NUM_KEPT = 2
_JOURNAL = "rows.journal"
_SETTINGS = "settings.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """The `record` (plain JSON) and the arrays of one moment, by group and name."""

    record: Mapping[str, Any]
    arrays: Mapping[str, Mapping[str, NDArray]]


class Store:
    """The directory of one server. Two servers must not share one."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._journal: BinaryIO | None = None

    def save(self, snapshot: Snapshot) -> Path:
        """Writes a snapshot and removes all but the newest two; an OSError leaves the others as they were."""
        numbers = [_number(path) for path in self._snapshots()]
        path = self._directory / f"{max(numbers, default=0) + 1:08d}.snapshot"
        self._write_aside(path, lambda file: _write(file, snapshot))
        for old in self._snapshots()[:-_NUM_KEPT]:
            old.unlink()
        return path

    def newest(self) -> Snapshot | None:
        """The newest whole snapshot, or None when there is none at all.

        ConfigurationError when there are some and none is whole: beginning anew would hide the loss.
        """
        paths = self._snapshots()
        for path in reversed(paths):
            try:
                with path.open("rb") as file:
                    return _read(file, path.stat().st_size)
            except (OSError, ValueError, KeyError, TypeError) as error:
                _log.warning("%s is damaged (%s): trying the one before it", path, error)
        if paths:
            raise ConfigurationError(
                f"none of the {len(paths)} snapshots in {self._directory} is whole: remove them to begin anew"
            )
        return None

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes settings that are newer than those of any snapshot."""
        content = json.dumps(settings).encode()
        self._write_aside(self._directory / _SETTINGS, lambda file: file.write(content))

    def settings(self) -> dict[str, Any]:
        """The settings that were saved last; empty if none were."""
        path = self._directory / _SETTINGS
        settings: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
        return settings

    def append(self, entry: Mapping[str, Any]) -> None:
        """Adds to the journal. It outlives this process, though perhaps not a crash of the machine."""
        line = json.dumps(entry).encode() + b"\n"
        if entry.get("what") == "open" or self._journal is None:
            self._start_journal(keep=entry.get("what") != "open")
        assert self._journal is not None
        self._journal.write(line)
        self._journal.flush()

    def journal(self) -> list[Mapping[str, Any]]:
        """The entries of the journal, oldest first, without a last one that is only half there."""
        path = self._directory / _JOURNAL
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _start_journal(self, keep: bool) -> None:
        self.close()
        kept = self.journal() if keep else []
        path = self._directory / _JOURNAL
        self._write_aside(path, lambda file: file.writelines(json.dumps(e).encode() + b"\n" for e in kept))
        self._journal = path.open("ab")

    def _write_aside(self, path: Path, write: Any) -> None:
        aside = path.with_name(f".{path.name}.part")
        try:
            with aside.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            aside.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _snapshots(self) -> list[Path]:
        return sorted(path for path in self._directory.glob("*.snapshot") if _number(path) > 0)


def _number(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else 0


def _write(file: BinaryIO, snapshot: Snapshot) -> None:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for block in _blocks(snapshot):
        digest.update(block)
        file.write(block)
    file.write(digest.digest())


def _blocks(snapshot: Snapshot) -> Iterator[bytes | memoryview]:
    named = [
        (group, name, array) for group, arrays in snapshot.arrays.items() for name, array in arrays.items()
    ]
    described = [[group, name, array.dtype.name, list(array.shape)] for group, name, array in named]
    header = json.dumps({"record": snapshot.record, "arrays": described}).encode()
    yield _MAGIC + len(header).to_bytes(8, "little") + header
    for _, _, array in named:
        flat = np.ascontiguousarray(array).astype(dtype_of(array.dtype.name), copy=False)
        if flat.nbytes:
            yield flat.reshape(-1).view(np.uint8).data


def _read(file: BinaryIO, size: int) -> Snapshot:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    start = file.read(len(_MAGIC) + 8)
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    if start[: len(_MAGIC)] != _MAGIC or length > size:
        raise ValueError("not a snapshot")
    header = file.read(length)
    digest.update(start + header)
    content = json.loads(header)
    expected = sum(math.prod(shape) * dtype_of(dtype).itemsize for _, _, dtype, shape in content["arrays"])
    if expected + len(start) + length + _DIGEST_BYTES != size:
        raise ValueError(f"it has {size} bytes, not the number that its header announces")
    arrays: dict[str, dict[str, NDArray]] = {}
    for group, name, dtype, shape in content["arrays"]:
        flat = np.empty(math.prod(shape) * dtype_of(dtype).itemsize, np.uint8)
        file.readinto(flat.data)  # type: ignore[attr-defined]
        digest.update(flat.data)
        arrays.setdefault(group, {})[name] = flat.view(dtype_of(dtype)).reshape(shape)
    if file.read() != digest.digest():
        raise ValueError("its digest does not match its content")
    return Snapshot(content["record"], arrays)
