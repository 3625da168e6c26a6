import contextlib
import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from trireme.errors import ProtocolError
from trireme.parameter_server import RowGradient
from trireme.parameter_server.wire_format import FRAME_BYTES, PROTOCOL_VERSION, Limits, decode, encode

LIMITS = Limits(header_bytes=1 << 16, message_bytes=1 << 20)
DTYPES = st.sampled_from(["bool", "int8", "int64", "uint16", "float16", "float32", "float64"])


def arrays_of_any_kind():
    dense = npst.arrays(DTYPES, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    sparse = st.integers(0, 4).flatmap(
        lambda n: st.builds(RowGradient, npst.arrays("int64", n), npst.arrays("float32", st.just((n, 2))))
    )
    return st.dictionaries(st.text(max_size=8), dense | sparse, max_size=4)


def bytes_of(frames):
    return [bytes(frame) for frame in frames]


def same(one, other):
    if isinstance(one, RowGradient):
        return same(one.rows, other.rows) and same(one.values, other.values)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@settings(deadline=None)
@given(arrays_of_any_kind())
def test_round_trip(arrays):
    header, received = decode(bytes_of(encode({"kind": "test"}, arrays)), LIMITS)
    assert header == {"kind": "test"}
    assert received.keys() == arrays.keys()
    assert all(same(received[name], array) for name, array in arrays.items())


def test_large_arrays_are_cut_into_frames_and_joined():
    array = np.arange(FRAME_BYTES // 2 + 3, dtype=np.float32)
    frames = encode({}, {"a": array, "b": np.array([1], ml_dtypes.bfloat16)})
    assert [len(frame) for frame in frames[1:]] == [16, FRAME_BYTES, FRAME_BYTES, 12]
    _, received = decode(bytes_of(frames), Limits())
    assert np.array_equal(received["a"], array)
    assert received["b"].dtype == ml_dtypes.bfloat16


def test_sending_a_large_array_copies_nothing_and_receiving_one_frame_neither():
    array = np.zeros((5, 1000), np.float32)
    frames = encode({}, {"a": array})
    assert np.shares_memory(np.frombuffer(frames[1], np.float32), array)
    received = bytearray(frames[1])
    _, arrays = decode([frames[0], memoryview(received)], LIMITS)
    assert np.shares_memory(arrays["a"], np.frombuffer(received, np.uint8))


def test_small_arrays_share_frames():
    arrays = {f"bias_{index}": np.full(index % 7, index, np.float32) for index in range(500)}
    frames = encode({}, arrays)
    assert len(frames) == 2
    many = {f"kernel_{index}": np.full(4000, index, np.float32) for index in range(300)}
    frames = encode({}, {**arrays, **many})
    assert len(frames) == 4
    assert all(len(frame) <= FRAME_BYTES for frame in frames)
    _, received = decode(bytes_of(frames), Limits())
    assert all(same(received[name], array) for name, array in {**arrays, **many}.items())
    assert all(array.flags.aligned for array in received.values())


def test_what_arrives_is_aligned():
    buffer = bytearray(17)
    frames = encode({}, {"a": np.array([1.5, 2.5])})
    buffer[1:] = bytes(frames[1])
    _, arrays = decode([frames[0], memoryview(buffer)[1:]], LIMITS)
    assert arrays["a"].flags.aligned
    assert arrays["a"].tolist() == [1.5, 2.5]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=4))
def test_random_frames_are_refused(frames):
    with pytest.raises(ProtocolError):
        decode(frames, LIMITS)


@settings(deadline=None)
@given(arrays_of_any_kind(), st.data())
def test_mutated_frames_are_refused_or_read(arrays, data):
    frames = bytes_of(encode({"kind": "test", "number": 3}, arrays))
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(frames) - 1))
        frame = bytearray(frames[index])
        change = data.draw(st.sampled_from(["flip", "cut", "insert", "drop", "double"]))
        if change == "flip" and frame:
            frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "cut":
            del frame[data.draw(st.integers(0, len(frame))) :]
        elif change == "insert":
            frame += data.draw(st.binary(max_size=8))
        frames[index] = bytes(frame)
        if change == "drop" and len(frames) > 1:
            del frames[index]
        elif change == "double":
            frames.insert(index, frames[index])
    with contextlib.suppress(ProtocolError):
        decode(frames, LIMITS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
)
ENTRY = st.tuples(st.just("a"), st.sampled_from(["dense", "rows", "values", "x"]), DTYPES | JSON, JSON).map(
    list
)


def frame_with(header):
    return struct.pack("!4sH", b"TRPS", PROTOCOL_VERSION) + json.dumps(header).encode()


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["arrays", "kind"]), st.lists(ENTRY, max_size=3) | JSON),
    st.binary(max_size=64),
)
@example({"arrays": [["a", "dense", "float32", [1 << 40, 1 << 40]]]}, b"")
@example({"arrays": [["a", "dense", "float32", [-1]]]}, b"abcd")
@example({"arrays": [["a", "dense", "float32", [True]]]}, b"abcd")
@example({"arrays": [["a", "dense", "object", [1]]]}, b"abcdefgh")
@example({"arrays": [["a", "rows", "float32", [1]], ["a", "values", "float32", [1]]]}, b"abcd")
def test_well_formed_headers_with_any_content(header, content):
    for frames in (
        [frame_with(header)],
        [frame_with(header), content],
        [frame_with(header), content, content],
    ):
        with contextlib.suppress(ProtocolError):
            decode(frames, LIMITS)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "empty"),
        ([b"TR"], "shorter than its prefix"),
        ([b"HTTP/1.1 400"], "instead of b'TRPS'"),
        ([struct.pack("!4sH", b"TRPS", 999) + b"{}"], "version 999, but this process speaks version 1"),
        ([struct.pack("!4sH", b"TRPS", 1) + b"[" * 100_000], "more than 65536"),
        ([struct.pack("!4sH", b"TRPS", 1) + b"[" * 50_000], "not JSON"),
        ([struct.pack("!4sH", b"TRPS", 1) + b'{"a": NaN}'], "NaN is not a number"),
        ([struct.pack("!4sH", b"TRPS", 1) + b"1" * 5000], "not JSON"),
        ([frame_with([])], "must be a JSON object, got list"),
        ([frame_with({})], "'arrays' must be a list"),
        ([frame_with({"arrays": []}), b"x"], "2 frames where the header announces 1"),
        ([frame_with({"arrays": []}), bytes(1 << 20)], "more than the limit of 1048576"),
        (
            [frame_with({"arrays": [["a", "dense", "float32", [2]]]}), b"1234"],
            "16 bytes of arrays are announced, but 4 arrived",
        ),
        (
            [frame_with({"arrays": [["a", "dense", "float32", [2]]]})],
            "16 bytes of arrays are announced, but 0 arrived",
        ),
        ([frame_with({"arrays": [["a", "rows", "int64", [1]]]}), bytes(16)], r"the parts \['rows'\]"),
        ([frame_with({"arrays": [["a", "dense", "int8", [1]]] * 2}), bytes(32)], "occurs twice"),
    ],
)
def test_refusals_say_what_is_wrong(frames, message):
    with pytest.raises(ProtocolError, match=message):
        decode(frames, LIMITS)
