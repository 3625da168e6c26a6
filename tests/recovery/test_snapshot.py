"""What a backup takes, what it refuses, and that a copy is one."""

import math

import ml_dtypes
import numpy as np
import pytest

from trireme.errors import UsageError
from trireme.recovery.snapshot import Snapshot, decode_state, encode_state, type_name, type_named


@pytest.mark.parametrize(
    "dtype",
    [
        *("?", "i1", "<i4", ">i4", "<f2", "<f4", ">f8", "<c16", "<U5", "S3", "<M8[ns]", "<m8[s]", "V3"),
        # numpy says of e5m2, and of no other of its kind, that it is a float.
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4),
    ],
)
def test_types_have_names_that_lead_back_to_them(dtype):
    dtype = np.dtype(dtype)
    assert type_named(type_name(dtype)) == dtype


@pytest.mark.parametrize("name", ["|O", "object", "nonsense", "float32", "", "__name__", "<f4,<f4"])
def test_only_those_names_are_taken(name):
    with pytest.raises(TypeError):
        type_named(name)


@pytest.mark.parametrize(
    "array",
    [
        np.array([None]),
        np.zeros(2, [("a", "f4"), ("b", "i4")]),
        np.array(["text"], np.dtypes.StringDType()),
    ],
)
def test_arrays_that_are_more_than_bytes_are_refused_by_name(array):
    with pytest.raises(UsageError, match=r"'bad' \("):
        Snapshot(0, 0, arrays={"good": np.zeros(2), "bad": array})


def test_a_copy_shares_no_memory():
    array, state, blob = np.arange(6.0).reshape(2, 3).T, {"history": {"loss": [1.0]}}, bytearray(b"abc")
    copy = Snapshot(1, 2, arrays={"a": array}, state=state, blobs={"b": blob}).copy()
    array[:] = -1
    state["history"]["loss"].append(2.0)
    blob[:] = b"xyz"
    np.testing.assert_array_equal(copy.arrays["a"], np.arange(6.0).reshape(2, 3).T)
    assert copy.state == {"history": {"loss": [1.0]}}
    assert copy.blobs == {"b": b"abc"}
    assert (copy.epoch, copy.step) == (1, 2)


def test_a_copy_uses_the_memory_it_is_given_where_it_fits():
    buffers = {"fits": np.empty((2, 3)), "shape": np.empty(5), "type": np.empty(4, np.float32)}
    arrays = {"fits": np.ones((2, 3)), "shape": np.ones(4), "type": np.ones(4), "more": np.ones(1)}
    copy = Snapshot(0, 0, arrays=arrays).copy(into=buffers)
    assert copy.arrays["fits"] is buffers["fits"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(copy.arrays[name], array)
        assert copy.arrays[name].dtype == array.dtype
        assert not np.shares_memory(copy.arrays[name], array)


def test_numpy_scalars_become_numbers_and_infinities_stay():
    state = {
        "loss": np.float32(0.5),
        "epoch": np.int64(3),
        "best": math.inf,
        "flag": np.bool_(True),
        "half": ml_dtypes.bfloat16(1.5),
        "shape": (1, 2),
    }
    expected = {"loss": 0.5, "epoch": 3, "best": math.inf, "flag": True, "half": 1.5, "shape": [1, 2]}
    assert decode_state(encode_state(state)) == expected
    assert math.isnan(decode_state(encode_state({"loss": math.nan}))["loss"])


@pytest.mark.parametrize(
    "value", [np.zeros(2), b"bytes", {1, 2}, np.complex64(1j), np.datetime64("2020-01-01")]
)
def test_what_json_cannot_tell_is_refused(value):
    with pytest.raises(UsageError, match="takes what JSON takes, not"):
        encode_state({"a": [value]})


def test_keys_that_json_would_change_are_refused():
    with pytest.raises(UsageError, match=r"keys of a backup's state\['epochs'\] must be text, but one is 3"):
        encode_state({"epochs": [{3: 0.5}]})
