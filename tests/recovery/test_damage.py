"""Whatever happens to the bytes of a backup, it is either read as it was written or recognised as damaged."""

import io
import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from trireme.errors import BackupDamaged, BackupWarning
from trireme.recovery import Backups, Snapshot
from trireme.recovery.backup_file import read_backup, write_backup

NAME = "backup-00000001-00000000"
OTHER_NAME = "backup-00000002-00000000"


class MemoryStore:
    """The smallest store, so that thousands of damages take seconds."""

    location = "memory"

    def __init__(self, files=()):
        self.files = dict(files)

    def write(self, name, parts):
        self.files[name] = b"".join(parts)

    def names(self):
        return list(self.files)

    def open(self, name):
        if name not in self.files:
            raise FileNotFoundError(name)
        return io.BytesIO(self.files[name])

    def delete(self, name):
        self.files.pop(name, None)


def written(snapshot, name=NAME):
    store = MemoryStore()
    write_backup(store, name, snapshot)
    return store


SMALL = Snapshot(
    epoch=1,
    step=2,
    arrays={"weights": np.arange(4, dtype=np.float32), "none": np.zeros((0, 2))},
    state={"loss": [0.5]},
    blobs={"iterator": b"\0\1"},
)
FILES = written(SMALL).files


def damaged(name, content):
    return MemoryStore(FILES | {name: content})


@pytest.mark.parametrize("name", FILES)
def test_any_truncation_is_recognised(name):
    for length in range(len(FILES[name])):
        with pytest.raises(BackupDamaged):
            read_backup(damaged(name, FILES[name][:length]), NAME)


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_recognised(name):
    for position in range(len(FILES[name])):
        for bit in range(8):
            content = bytearray(FILES[name])
            content[position] ^= 1 << bit
            with pytest.raises(BackupDamaged):
                read_backup(damaged(name, bytes(content)), NAME)


@given(st.sampled_from(list(FILES)), st.data())
def test_a_run_of_any_bytes_is_recognised(name, data):
    content = FILES[name]
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    altered = content[:start] + data.draw(st.binary(max_size=64)) + content[end:]
    assume(altered != content)
    with pytest.raises(BackupDamaged):
        read_backup(damaged(name, altered), NAME)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_two_files_are_recognised(manifest, data):
    with pytest.raises(BackupDamaged):
        read_backup(MemoryStore({NAME + ".manifest": manifest, NAME + ".data": data}), NAME)


names = st.text(max_size=8)
arrays = st.one_of(
    numpy_strategies.arrays(dtype, numpy_strategies.array_shapes(min_dims=0, min_side=0, max_side=4))
    for dtype in ("<f4", ">f8", "<i8", "?", "<U3", "<c16")
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
snapshots = st.builds(
    Snapshot,
    epoch=st.integers(0, 10**6),
    step=st.integers(0, 10**12),
    arrays=st.dictionaries(names, arrays, max_size=3),
    state=st.dictionaries(names, json_values, max_size=3),
    blobs=st.dictionaries(names, st.binary(max_size=32), max_size=3),
)


@given(snapshots)
def test_any_snapshot_comes_back(snapshot):
    loaded = read_backup(written(snapshot), NAME)
    assert (loaded.epoch, loaded.step, loaded.state, loaded.blobs) == (
        snapshot.epoch,
        snapshot.step,
        snapshot.state,
        snapshot.blobs,
    )
    assert list(loaded.arrays) == list(snapshot.arrays)
    for key, array in snapshot.arrays.items():
        assert (loaded.arrays[key].dtype, loaded.arrays[key].shape) == (array.dtype, array.shape)
        assert loaded.arrays[key].tobytes() == array.tobytes()


@settings(deadline=None)
@given(snapshots, st.sampled_from([".manifest", ".data"]), st.data())
def test_any_damage_to_the_newest_leads_to_the_one_before(snapshot, ending, data):
    newest = written(snapshot, OTHER_NAME).files
    content = newest[OTHER_NAME + ending]
    if content and data.draw(st.booleans()):
        position, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
        altered = bytearray(content)
        altered[position] ^= 1 << bit
    else:
        assume(content)
        altered = content[: data.draw(st.integers(0, len(content) - 1))]
    store = MemoryStore(FILES | newest | {OTHER_NAME + ending: bytes(altered)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = Backups(store).load_newest()
    assert loaded.name == NAME
    assert [warning.category for warning in caught] == [BackupWarning]
    assert OTHER_NAME in str(caught[0].message)
