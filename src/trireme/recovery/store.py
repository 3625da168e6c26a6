"""Where backups live: a folder of this machine, or any place `fsspec` opens (gs://, s3://, memory://, ...).

A store knows names and bytes and nothing of backups. What it promises is that a name written by `write` is
either there and whole or not there, as far as the place can promise that; the format of a backup covers the
rest.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from trireme.errors import ConfigurationError

ASIDE = ".partial"


class Store(Protocol):
    """A flat set of named byte strings. Errors of the place come out as they are (mostly `OSError`)."""

    location: str

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Store the parts, one after the other, under `name`; after an error nothing is stored under it."""

    def names(self) -> list[str]:
        """Return all names, leftovers of interrupted writes included; none if the place does not exist
        yet."""

    def open(self, name: str) -> BinaryIO:
        """Return a binary file to read and close; `FileNotFoundError` if there is no such name."""

    def delete(self, name: str) -> None:
        """Remove `name`; that it is gone already is no error."""


def open_store(location: str | os.PathLike[str]) -> Store:
    """Return the store at a folder or, with a protocol in front, at whatever `fsspec` opens; nothing is
    created yet."""
    text = os.fspath(location)
    if text.startswith("file://"):
        return LocalStore(text.removeprefix("file://"))
    return FsspecStore(text) if "://" in text else LocalStore(text)


class LocalStore:
    """A folder. Each name is written aside, flushed to the disk and renamed, so not even a power cut halves
    it."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.location = os.fspath(folder)
        self._folder = Path(folder).expanduser()

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._folder / (name + ASIDE)
        try:
            _write_to_disk(aside, parts)
            os.replace(aside, self._folder / name)
        except BaseException:
            # Half a file would take the very room whose lack may be the error.
            aside.unlink(missing_ok=True)
            raise
        _flush_folder(self._folder)

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._folder) if entry.is_file())
        except FileNotFoundError:
            return []

    def open(self, name: str) -> BinaryIO:
        return open(self._folder / name, "rb")

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


class FsspecStore:
    """A folder of an `fsspec` file system. Object stores show a name only when its upload is complete."""

    def __init__(self, location: str):
        self.location = location
        self._files, self._folder = _open_file_system(location)
        self._is_made = False

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        self._make_folder()
        try:
            with self._files.open(self._path(name), "wb") as file:
                for part in parts:
                    file.write(part)
        except BaseException:
            # Leaving the `with` completes the upload with the parts that were there.
            self._delete_if_possible(name)
            raise

    def names(self) -> list[str]:
        # Listings are cached, and another process may have written or removed names.
        self._files.invalidate_cache()
        try:
            entries = self._files.ls(self._folder, detail=True)
        except FileNotFoundError:
            return []
        return sorted(entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file")

    def open(self, name: str) -> BinaryIO:
        return cast(BinaryIO, self._files.open(self._path(name), "rb"))

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _make_folder(self) -> None:
        if not self._is_made:
            self._files.makedirs(self._folder, exist_ok=True)
            self._is_made = True

    def _delete_if_possible(self, name: str) -> None:
        # The error that matters is on its way already; what stays behind has no manifest and is never read.
        with contextlib.suppress(Exception):
            self.delete(name)


def _open_file_system(location: str) -> tuple[Any, str]:
    """Return the file system and the path of the folder in it; an import here keeps fsspec an optional
    dependency."""
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigurationError(
            f"Backups at {location!r} need the library fsspec: pip install 'keras-trireme[fsspec]'"
        ) from error
    try:
        files, folder = fsspec.core.url_to_fs(location)
    except (ImportError, ValueError) as error:
        # fsspec names the missing package ("Install s3fs to access S3") or the unknown protocol.
        raise ConfigurationError(f"Backups at {location!r} cannot be opened by fsspec: {error}") from error
    return files, folder.rstrip("/")


def _write_to_disk(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Make a rename in the folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
