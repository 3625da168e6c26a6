"""Snapshots on their way between workers."""

import ml_dtypes
import numpy as np
import pytest

from trireme.recovery.packing import pack, unpack
from trireme.recovery.snapshot import Snapshot

ARRAYS = {
    "scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 4), np.float32),
    "matrix": np.arange(6, dtype=np.float64).reshape(2, 3),
    "half": np.array([1.5, -2], ml_dtypes.bfloat16),
    "is": np.array([True, False]),
    # What somebody sliced is not contiguous.
    "sliced": np.arange(10)[::3],
}


def test_what_is_packed_comes_out_again():
    packed = pack(Snapshot(3, 17, ARRAYS, {"wait": 2, "best": float("inf"), "names": ["a"]}, name="backup-1"))
    found = unpack(packed)
    assert (found.epoch, found.step, found.name) == (3, 17, "backup-1")
    assert found.state == {"wait": 2, "best": float("inf"), "names": ["a"]}
    assert list(found.arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype and found.arrays[name].shape == array.shape
        np.testing.assert_array_equal(found.arrays[name], array)


@pytest.mark.parametrize("arrays", [{}, {"one": np.ones(3)}])
def test_an_empty_state_is_a_state(arrays):
    assert unpack(pack(Snapshot(0, 0, arrays))).state == {}
