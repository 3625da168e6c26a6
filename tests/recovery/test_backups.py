"""Backups come back as they were, and nothing that is not whole comes back at all."""

import re
import uuid
import warnings

import ml_dtypes
import numpy as np
import pytest

from trireme.errors import BackupDamaged, BackupNotWritten, BackupStorageFull, BackupWarning, UsageError
from trireme.recovery import Backups, Snapshot
from trireme.recovery.store import LocalStore


def snapshot(step=0, epoch=0, **more):
    arrays = {"weights": np.full((3, 4), float(step), np.float32), "count": np.int64(step)}
    return Snapshot(epoch, step, arrays=arrays, state={"loss": [0.1] * step}, **more)


@pytest.fixture(params=["folder", "local://", "memory://"])
def location(request, tmp_path):
    places = {"folder": str(tmp_path), "local://": f"local://{tmp_path}"}
    return places.get(request.param, f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def backups(location):
    return Backups(location)


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", BackupWarning)
        yield


def overwrite(backups, name, change):
    """Change one file of a backup in place."""
    with backups.store.open(name) as file:
        content = change(file.read())
    backups.store.write(name, [content])


def flip(position, bit=0):
    def change(content):
        altered = bytearray(content)
        altered[position] ^= 1 << bit
        return bytes(altered)

    return change


def test_what_was_saved_is_loaded(backups, no_warnings):
    arrays = {
        "matrix": np.arange(6.0).reshape(2, 3),
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "every other": np.arange(10)[::2],
        "scalar": np.float32(3.5),
        "empty": np.zeros((0, 3)),
        "bfloat16": np.arange(5).astype(ml_dtypes.bfloat16),
        "float8": np.arange(5).astype(ml_dtypes.float8_e5m2),
        "big endian": np.arange(3, dtype=">i4"),
        "text": np.array(["a", "longer"]),
        "flags": np.array([True, False]),
        "": np.ones(1),
        "layer/ü\n": np.ones(1),
    }
    state = {"history": {"loss": [0.5, float("inf")]}, "name": "ü"}
    blobs = {"iterator": bytes(range(256)), "nothing": b""}
    name = backups.save(Snapshot(3, 120, arrays=arrays, state=state, blobs=blobs))
    loaded = backups.load_newest()
    assert (loaded.epoch, loaded.step, loaded.name) == (3, 120, name)
    assert loaded.state == state
    assert loaded.blobs == blobs
    assert list(loaded.arrays) == list(arrays)
    for key, array in arrays.items():
        np.testing.assert_array_equal(loaded.arrays[key], array)
        assert (loaded.arrays[key].dtype, loaded.arrays[key].shape) == (array.dtype, array.shape)
        assert loaded.arrays[key].flags.writeable


def test_an_array_larger_than_one_part_is_kept(tmp_path, no_warnings):
    array = np.random.default_rng(0).integers(0, 256, 20 * 2**20 + 7, np.uint8)
    backups = Backups(tmp_path)
    backups.save(Snapshot(0, 0, arrays={"a": array}))
    np.testing.assert_array_equal(backups.load_newest().arrays["a"], array)


def test_no_backups_are_none(backups, no_warnings):
    assert backups.load_newest() is None
    assert backups.names() == []


def test_files_of_others_are_no_backups(backups, no_warnings):
    for name in (
        "readme.txt",
        "backup-1.manifest",
        "backup-00000009-zzzzzzzz.data",
        "x-backup-00000009-abcdefab.data",
    ):
        backups.store.write(name, [b"?"])
    assert backups.load_newest() is None
    backups.save(snapshot(1))
    assert backups.load_newest().step == 1
    assert "readme.txt" in backups.store.names()


def test_the_newest_are_kept(location, no_warnings):
    backups = Backups(location, keep=2)
    names = [backups.save(snapshot(step)) for step in range(5)]
    assert backups.names() == names[-2:]
    assert len(backups.store.names()) == 4
    assert backups.load_newest().step == 4
    assert backups.load(names[-2]).step == 3


def test_the_newest_is_the_last_saved_and_not_the_furthest(backups, no_warnings):
    backups.save(snapshot(step=50))
    backups.save(snapshot(step=40))
    assert backups.load_newest().step == 40


def test_another_process_counts_on(location, no_warnings):
    first = Backups(location).save(snapshot(1))
    second = Backups(location).save(snapshot(2))
    assert first < second
    assert Backups(location).load_newest().step == 2


def test_two_writers_at_once_do_not_mix_their_files(location, no_warnings):
    one, other = Backups(location), Backups(location)

    class InBetween:
        """The other one stores a whole backup, of the same number, between this one's two files."""

        location = one.location

        def __getattr__(self, name):
            return getattr(one.store, name)

        def write(self, name, parts):
            if name.endswith(".manifest"):
                other.save(snapshot(2))
            one.store.write(name, parts)

    Backups(InBetween()).save(snapshot(1))
    assert sorted(other.load(name).step for name in other.names()) == [1, 2]


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_none_is_refused(tmp_path, keep):
    with pytest.raises(UsageError, match=f"keep={keep} backups"):
        Backups(tmp_path, keep=keep)


DAMAGES = {
    "data truncated": (
        ".data",
        lambda content: content[:-1],
        r"truncated in array 'weights', at 47 of 48 bytes",
    ),
    "data empty": (".data", lambda content: b"", "truncated in state, at 0 of"),
    "data too long": (".data", lambda content: content + b"\0", "go on after the end"),
    "array altered": (".data", flip(-1), "array 'weights' is altered"),
    "state altered": (".data", flip(0), "state is altered"),
    "manifest truncated": (".manifest", lambda content: content[:-1], "manifest is truncated or altered"),
    "manifest empty": (".manifest", lambda content: b"", "manifest does not begin as one"),
    "manifest altered": (".manifest", flip(60), "manifest is truncated or altered"),
    "manifest too long": (".manifest", lambda content: content + b"\n", "manifest is truncated or altered"),
    "later format": (
        ".manifest",
        lambda content: content.replace(b"format 1", b"format 2"),
        "of format 2, and this version of Trireme reads format 1",
    ),
}


@pytest.mark.parametrize("ending, change, reason", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_backup_is_passed_over(backups, ending, change, reason):
    older = backups.save(snapshot(1))
    newest = backups.save(Snapshot(0, 2, arrays={"weights": np.ones((3, 4), np.float32)}))
    overwrite(backups, newest + ending, change)
    with pytest.warns(BackupWarning) as caught:
        loaded = backups.load_newest()
    assert (loaded.step, loaded.name) == (1, older)
    assert [warning.filename for warning in caught] == [__file__]
    message = str(caught[0].message)
    assert newest in message and backups.location in message
    assert re.search(reason, message), message
    assert message.endswith(f"Going on from {older} (epoch 0, step 1).")


@pytest.mark.parametrize("ending", [".data", ".manifest"])
def test_half_a_backup_is_passed_over(backups, ending):
    backups.save(snapshot(1))
    newest = backups.save(snapshot(2))
    backups.store.delete(newest + ending)
    reason = "one of its two files is missing" if ending == ".data" else "it is half-written"
    with pytest.warns(BackupWarning, match=f"{newest}: {reason}"):
        assert backups.load_newest().step == 1


def test_several_damaged_ones_are_each_named(backups):
    names = [backups.save(snapshot(step)) for step in range(3)]
    for name in names[1:]:
        overwrite(backups, name + ".data", flip(0))
    with pytest.warns(BackupWarning) as caught:
        assert backups.load_newest().step == 0
    assert all(any(name in str(warning.message) for warning in caught) for name in names[1:])
    assert len(caught) == 2


def test_a_renamed_backup_does_not_pass_for_a_newer_one(backups):
    name = backups.save(snapshot(1))
    forged = name.replace("00000001", "00000002")
    for ending in (".data", ".manifest"):
        with backups.store.open(name + ending) as file:
            backups.store.write(forged + ending, [file.read()])
    with pytest.warns(BackupWarning, match=f"{forged}: its manifest is that of {name}"):
        assert backups.load_newest().name == name


def test_if_all_are_damaged_it_is_an_error_that_names_them(backups):
    names = [backups.save(snapshot(step)) for step in range(2)]
    for name in names:
        overwrite(backups, name + ".data", flip(0))
    with pytest.raises(BackupDamaged) as caught:
        backups.load_newest()
    assert all(f"{name}: its state is altered" in str(caught.value) for name in names)
    assert "remove these files" in str(caught.value)
    assert caught.value.exit_code == 78


def test_lost_manifests_are_an_error_too(backups):
    names = [backups.save(snapshot(step)) for step in range(2)]
    for name in names:
        backups.store.delete(name + ".manifest")
    with pytest.raises(BackupDamaged, match="half-written"):
        backups.load_newest()


def test_a_run_ended_in_its_first_backup_starts_from_the_beginning(backups):
    name = backups.save(snapshot(1))
    backups.store.delete(name + ".manifest")
    with pytest.warns(BackupWarning, match=f"{name}: it is half-written .* starting from the beginning"):
        assert backups.load_newest() is None


def test_a_first_backup_that_was_finished_and_damaged_is_an_error(backups):
    overwrite(backups, backups.save(snapshot(1)) + ".manifest", flip(0))
    with pytest.raises(BackupDamaged, match="does not begin as one"):
        backups.load_newest()


def test_leftovers_go_with_the_next_backup(backups, no_warnings):
    kept = backups.save(snapshot(1))
    half = kept.replace("00000001", "00000002")
    backups.store.write(half + ".data", [b"half"])
    backups.store.write(half + ".manifest.partial", [b"quarter"])
    other = Backups(backups.location)
    names = [kept, other.save(snapshot(2)), other.save(snapshot(3))]
    assert backups.store.names() == sorted(
        name + ending for name in names for ending in (".data", ".manifest")
    )


def test_damaged_ones_do_not_count_as_kept_and_go_when_they_are_old(location):
    backups = Backups(location, keep=2)
    names = [backups.save(snapshot(step)) for step in range(2)]
    overwrite(backups, names[1] + ".data", flip(0))
    with pytest.warns(BackupWarning):
        backups.load_newest()
    names.append(backups.save(snapshot(2)))
    assert backups.names() == names
    names.append(backups.save(snapshot(3)))
    assert backups.names() == names[2:]


def test_a_place_that_refuses_to_answer_is_no_damage(tmp_path, monkeypatch):
    """Passing over a backup because the network was down for a second would throw work away."""
    backups = Backups(tmp_path)
    backups.save(snapshot(1))
    backups.save(snapshot(2))

    def refuse(self, name):
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(LocalStore, "open", refuse)
    with pytest.raises(PermissionError):
        backups.load_newest()


def test_a_sector_that_cannot_be_read_is_damage(tmp_path, monkeypatch):
    backups = Backups(tmp_path)
    backups.save(snapshot(1))
    newest = backups.save(snapshot(2))
    real_open = LocalStore.open

    def broken_disk(self, name):
        if name == newest + ".data":
            raise OSError(5, "Input/output error")
        return real_open(self, name)

    monkeypatch.setattr(LocalStore, "open", broken_disk)
    with pytest.warns(BackupWarning, match="the disk cannot read it"):
        assert backups.load_newest().step == 1


def test_a_place_that_cannot_be_written_is_an_error_with_the_place(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BackupNotWritten, match=r"epoch 2, step 7 could not be stored in .*file"):
        Backups(tmp_path / "file").save(snapshot(7, epoch=2))


@pytest.mark.parametrize("ending", [".data", ".manifest"])
def test_whichever_file_does_not_fit_leaves_nothing(backups, ending):
    class FullStore:
        location = backups.location

        def __getattr__(self, name):
            return getattr(backups.store, name)

        def write(self, name, parts):
            if name.endswith(ending):
                raise OSError(28, "No space left on device")
            backups.store.write(name, parts)

    backups.save(snapshot(1))
    before = backups.store.names()
    with pytest.raises(BackupStorageFull, match=r"step 2 could not be stored .* no room"):
        Backups(FullStore()).save(snapshot(2))
    assert backups.store.names() == before


def test_old_ones_that_cannot_be_removed_do_not_fail_the_new_one(tmp_path, monkeypatch):
    backups = Backups(tmp_path, keep=1)
    backups.save(snapshot(1))

    def refuse(self, name):
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(LocalStore, "delete", refuse)
    with pytest.warns(BackupWarning, match="could not be removed, and take room"):
        backups.save(snapshot(2))
    assert backups.load_newest().step == 2
