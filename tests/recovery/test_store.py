"""One contract for every place that backups can live at."""

import os
import subprocess
import sys
import textwrap
import uuid

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from trireme.errors import ConfigurationError
from trireme.recovery.store import FsspecStore, LocalStore, open_store


@pytest.fixture(params=["folder", "file://", "local://", "memory://"])
def location(request, tmp_path):
    if request.param == "folder":
        return tmp_path / "runs" / "backup"
    if request.param == "memory://":
        return f"memory://{uuid.uuid4().hex}/runs"
    return f"{request.param}{tmp_path}/runs/backup"


@pytest.fixture
def store(location):
    return open_store(location)


def read(store, name):
    with store.open(name) as file:
        return file.read()


def test_what_was_written_is_read(store):
    store.write("a", [b"one ", memoryview(b"two")])
    store.write("b", [])
    assert store.names() == ["a", "b"]
    assert read(store, "a") == b"one two"
    assert read(store, "b") == b""


def test_a_place_that_does_not_exist_has_no_names(store):
    assert store.names() == []


def test_a_name_is_replaced(store):
    store.write("a", [b"long old content"])
    store.write("a", [b"new"])
    assert read(store, "a") == b"new"
    assert store.names() == ["a"]


def test_a_deleted_name_is_gone_and_may_be_deleted_again(store):
    store.write("a", [b"x"])
    store.delete("a")
    store.delete("a")
    assert store.names() == []
    with pytest.raises(FileNotFoundError):
        store.open("a")


def test_a_write_that_fails_leaves_nothing(store):
    store.write("other", [b"x"])

    def parts():
        yield b"first"
        raise OSError("the source broke")

    with pytest.raises(OSError, match="the source broke"):
        store.write("a", parts())
    assert store.names() == ["other"]


def test_another_store_at_the_same_place_sees_it(store, location):
    other = open_store(location)
    assert other.names() == []
    store.write("a", [b"x"])
    assert other.names() == ["a"]
    store.delete("a")
    assert other.names() == []


def test_folders_are_no_names(store, location):
    store.write("a", [b"x"])
    if "://" in str(location):
        files, path = fsspec.core.url_to_fs(location)
        files.makedirs(f"{path}/folder")
    else:
        (location / "folder").mkdir()
    assert store.names() == ["a"]


def test_a_failed_write_leaves_the_old_content_in_a_folder(tmp_path):
    store = LocalStore(tmp_path)
    store.write("a", [b"old"])

    def parts():
        yield b"half of the n"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write("a", parts())
    assert read(store, "a") == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_the_content_is_on_the_disk_before_the_name_is_and_the_name_before_write_returns(
    tmp_path, monkeypatch
):
    events = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor):
        events.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def record_replace(source, target):
        events.append(("rename", os.path.basename(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    LocalStore(tmp_path / "folder").write("a", [b"x"])
    assert events == [("fsync", "a.partial"), ("rename", "a"), ("fsync", "folder")]


class ListedMemory(MemoryFileSystem):
    """A file system that remembers its listings until it is told to forget them, as those of object stores do."""

    protocol = "listed"

    def ls(self, path, detail=True, **options):
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail, **options)
        return self.dircache[path]

    def invalidate_cache(self, path=None):
        self.dircache.clear()


def test_listings_are_fresh():
    fsspec.register_implementation("listed", ListedMemory, clobber=True)
    reader = open_store(f"listed://{uuid.uuid4().hex}")
    for name in ("a", "b"):
        MemoryFileSystem().pipe(f"{reader._folder}/{name}", b"x")
        assert name in reader.names()


def test_a_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    open_store("~/backup").write("a", [b"x"])
    assert (tmp_path / "backup" / "a").read_bytes() == b"x"


@pytest.mark.parametrize(
    "location, kind",
    [("runs/backup", LocalStore), ("file:///runs", LocalStore), ("memory://runs", FsspecStore)],
)
def test_the_kind_of_store_follows_from_the_location(location, kind):
    assert isinstance(open_store(location), kind)


def test_an_unknown_protocol_is_named():
    with pytest.raises(ConfigurationError, match=r"'s4://bucket/x' cannot be opened by fsspec: .*s4"):
        open_store("s4://bucket/x")


def test_without_fsspec_a_folder_works_and_a_bucket_says_what_to_install(tmp_path):
    program = """
        import sys
        sys.modules["fsspec"] = None
        from trireme.recovery.store import open_store
        open_store(sys.argv[1]).write("a", [b"x"])
        try:
            open_store("gs://bucket/x")
        except Exception as error:
            print(type(error).__name__, error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == (
        "ConfigurationError Backups at 'gs://bucket/x' need the library fsspec: "
        "pip install 'keras-trireme[fsspec]'\n"
    ), done.stderr
