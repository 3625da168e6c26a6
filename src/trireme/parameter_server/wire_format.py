"""How a message looks on the wire: one header frame, then the bytes of its arrays.

    frame 0      4 bytes "TRPS", 2 bytes protocol version (big endian), then JSON: the header
    frames 1..   the arrays that header["arrays"] lists, as raw little-endian bytes: first those of at most
                 PACKED_BYTES, one after the other at multiples of 16 bytes, as many as fit in a frame; then each
                 larger one in frames of its own

An entry of header["arrays"] is [name, part, dtype, shape]; `part` is "dense", or "rows" and "values" for the two
arrays of a row gradient. No frame has more than FRAME_BYTES. Only small arrays are copied to be sent. What came in
a single frame is used where it arrived; larger arrays are joined by one copy, which costs less than the page
faults of a fresh hundred-megabyte frame for every message would.

Nothing here trusts its input: whatever is wrong with received frames ends in a `ProtocolError`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from trireme.errors import ProtocolError
from trireme.parameter_server.dtypes import dtype_of, name_of
from trireme.parameter_server.gradients import Gradient, NDArray, RowGradient

PROTOCOL_VERSION = 1
FRAME_BYTES = 2 << 20
PACKED_BYTES = 16 << 10

_MAGIC = b"TRPS"
_PREFIX = struct.Struct("!4sH")
_MAX_DIMENSIONS = 16
_ALIGNMENT = 16
_NUMBER_ALIGNMENT = 8
_PARTS = ("dense", "rows", "values")

Frame: TypeAlias = "bytes | memoryview"
_Entry: TypeAlias = "tuple[str, str, np.dtype[Any], tuple[int, ...]]"


@dataclass(frozen=True)
class Limits:
    """The largest message a process accepts. `message_bytes` counts all frames of a message together."""

    header_bytes: int = 8 << 20
    message_bytes: int = 16 << 30
    num_arrays: int = 1 << 16

    @property
    def frame_bytes(self) -> int:
        """The largest single frame; the transport drops a peer that sends a larger one."""
        return max(self.header_bytes, FRAME_BYTES)


def encode(header: Mapping[str, Any], arrays: Mapping[str, Gradient]) -> list[Frame]:
    """The frames of a message. They share memory with `arrays`, which must stay as they are until sent."""
    parts: list[tuple[str, str, NDArray]] = []
    for name, array in arrays.items():
        if isinstance(array, RowGradient):
            parts.append((name, "rows", array.rows.astype(np.int64, copy=False)))
            parts.append((name, "values", array.values))
        else:
            parts.append((name, "dense", array))
    described = [[name, part, name_of(array.dtype), list(array.shape)] for name, part, array in parts]
    text = json.dumps({**header, "arrays": described}, allow_nan=False, separators=(",", ":"))
    frames: list[Frame] = [_PREFIX.pack(_MAGIC, PROTOCOL_VERSION) + text.encode()]
    contents = [_content(array) for _, _, array in parts]
    packs, large = _layout([len(content) for content in contents])
    frames += [b"".join(_padded(contents[index]) for index in pack) for pack in packs]
    for index in large:
        content = contents[index]
        frames += [content[at : at + FRAME_BYTES] for at in range(0, len(content), FRAME_BYTES)]
    return frames


def decode(frames: Sequence[Frame], limits: Limits) -> tuple[dict[str, Any], dict[str, Gradient]]:
    """The header and the arrays of a message; ProtocolError for everything that is not a whole valid one."""
    if not frames:
        raise ProtocolError("an empty message: expected a header frame")
    size = sum(len(frame) for frame in frames)
    if size > limits.message_bytes:
        raise ProtocolError(f"a message of {size} bytes, more than the limit of {limits.message_bytes}")
    header = _decode_header(bytes(frames[0][: limits.header_bytes + 1]), limits)
    described = header.pop("arrays", None)
    if not isinstance(described, list) or len(described) > limits.num_arrays:
        raise ProtocolError(f"header field 'arrays' must be a list of at most {limits.num_arrays} arrays")
    entries = [_check_entry(entry) for entry in described]
    parts: dict[str, dict[str, NDArray]] = {name: {} for name, _, _, _ in entries}
    for (name, part, _, _), array in zip(entries, _read_arrays(frames, entries), strict=True):
        if parts[name].setdefault(part, array) is not array:
            raise ProtocolError(f"array {name!r} ({part}) occurs twice")
    return header, {name: _assemble(name, found) for name, found in parts.items()}


def _content(array: NDArray) -> memoryview:
    flat = np.ascontiguousarray(array).astype(dtype_of(name_of(array.dtype)), copy=False)
    return flat.reshape(-1).view(np.uint8).data if flat.nbytes else memoryview(b"")


def _padded(content: memoryview) -> bytes:
    return bytes(content) + bytes(-len(content) % _ALIGNMENT)


def _layout(sizes: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Which arrays share a frame, and which have their own: a function of the sizes alone, so both ends agree."""
    packs: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if 0 < size <= PACKED_BYTES:
            if size > room:
                packs.append([])
                room = FRAME_BYTES
            packs[-1].append(index)
            room -= size + -size % _ALIGNMENT
    return packs, [index for index, size in enumerate(sizes) if size > PACKED_BYTES]


def _decode_header(frame: bytes, limits: Limits) -> dict[str, Any]:
    if len(frame) > limits.header_bytes:
        raise ProtocolError(f"a header of more than {limits.header_bytes} bytes")
    if len(frame) < _PREFIX.size:
        raise ProtocolError(f"a header of {len(frame)} bytes, shorter than its prefix of {_PREFIX.size}")
    magic, version = _PREFIX.unpack_from(frame)
    if magic != _MAGIC:
        raise ProtocolError(f"a message that begins with {magic!r} instead of {_MAGIC!r}")
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"protocol version {version}, but this process speaks version {PROTOCOL_VERSION}: "
            "install the same keras-trireme on workers and servers"
        )
    try:
        header = json.loads(frame[_PREFIX.size :], parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ProtocolError(f"the header must be a JSON object, got {type(header).__name__}")
    return header


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def _check_entry(entry: Any) -> _Entry:
    match entry:
        case [str(name), str(part), str(dtype), list(shape)] if part in _PARTS:
            if len(shape) > _MAX_DIMENSIONS or not all(
                type(size) is int and 0 <= size < 1 << 48 for size in shape
            ):
                raise ProtocolError(f"array {name!r} has the shape {shape}")
            try:
                return name, part, dtype_of(dtype), tuple(shape)
            except (ValueError, ImportError) as error:
                raise ProtocolError(f"array {name!r} has an unknown dtype: {error}") from None
    raise ProtocolError("an entry of 'arrays' must be [name, part, dtype, shape]")


def _read_arrays(frames: Sequence[Frame], entries: Sequence[_Entry]) -> list[NDArray]:
    sizes = [math.prod(shape) * dtype.itemsize for _, _, dtype, shape in entries]
    packs, large = _layout(sizes)
    flats: dict[int, NDArray] = {}
    position = 1
    for pack in packs:
        content = _take(frames, position, sum(sizes[index] + -sizes[index] % _ALIGNMENT for index in pack))
        position += 1
        at = 0
        for index in pack:
            flats[index] = content[at : at + sizes[index]]
            at += sizes[index] + -sizes[index] % _ALIGNMENT
    for index in large:
        flats[index] = _take(frames, position, sizes[index])
        position += -(-sizes[index] // FRAME_BYTES)
    if position != len(frames):
        raise ProtocolError(f"{len(frames)} frames where the header announces {position}")
    empty = np.empty(0, np.uint8)
    return [
        flats.get(index, empty).view(dtype).reshape(shape)
        for index, (_, _, dtype, shape) in enumerate(entries)
    ]


def _take(frames: Sequence[Frame], position: int, nbytes: int) -> NDArray:
    """The bytes of the frames from `position` on that together have `nbytes`."""
    own = frames[position : position - (-nbytes // FRAME_BYTES)]
    found = sum(len(frame) for frame in own)
    if found != nbytes:
        raise ProtocolError(f"{nbytes} bytes of arrays are announced, but {found} arrived")
    if len(own) == 1:
        content = np.frombuffer(own[0], np.uint8)
        # Small frames share the receive buffer at any offset, where arithmetic would be slow. No number needs more.
        is_aligned = content.__array_interface__["data"][0] % _NUMBER_ALIGNMENT == 0
        return content if is_aligned else content.copy()
    joined = np.empty(nbytes, np.uint8)
    at = 0
    for frame in own:
        joined[at : at + len(frame)] = np.frombuffer(frame, np.uint8)
        at += len(frame)
    return joined


def _assemble(name: str, parts: Mapping[str, NDArray]) -> Gradient:
    match parts:
        case {"dense": dense} if len(parts) == 1:
            return dense
        case {"rows": rows, "values": values} if len(parts) == 2:
            try:
                return RowGradient(rows, values)
            except ValueError as error:
                raise ProtocolError(f"row gradient {name!r}: {error}") from None
    raise ProtocolError(f"array {name!r} has the parts {sorted(parts)}")
