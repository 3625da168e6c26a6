"""How a message looks on the wire: one header frame, then the bytes of its arrays.

    frame 0      4 bytes "TRPS", 2 bytes protocol version (big endian), then JSON: the header
    frames 1..   the arrays, in the order in which header["arrays"] lists them, as raw little-endian bytes

An entry of header["arrays"] is [name, part, dtype, shape]; `part` is "dense", or "rows" and "values" for the two
arrays of a row gradient. An array fills ceil(nbytes / FRAME_BYTES) frames. Arrays are sent without a copy. One
that came in a single frame is used where it arrived; larger ones are joined by one copy, which costs less than
the page faults of a fresh hundred-megabyte frame for every message would.

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
from trireme.parameter_server.dtypes import dtype_of
from trireme.parameter_server.gradients import Gradient, NDArray, RowGradient

PROTOCOL_VERSION = 1
FRAME_BYTES = 2 << 20

_MAGIC = b"TRPS"
_PREFIX = struct.Struct("!4sH")
_MAX_DIMENSIONS = 16
_PARTS = ("dense", "rows", "values")

Frame: TypeAlias = "bytes | memoryview"


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
    described: list[list[Any]] = []
    frames: list[Frame] = []
    for name, array in arrays.items():
        if isinstance(array, RowGradient):
            _append(name, "rows", array.rows.astype(np.int64, copy=False), described, frames)
            _append(name, "values", array.values, described, frames)
        else:
            _append(name, "dense", array, described, frames)
    text = json.dumps({**header, "arrays": described}, allow_nan=False, separators=(",", ":"))
    return [_PREFIX.pack(_MAGIC, PROTOCOL_VERSION) + text.encode(), *frames]


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
    parts: dict[str, dict[str, NDArray]] = {}
    position = 1
    for entry in described:
        name, part, dtype, shape = _check_entry(entry)
        array, position = _take(frames, position, dtype, shape)
        if parts.setdefault(name, {}).setdefault(part, array) is not array:
            raise ProtocolError(f"array {name!r} ({part}) occurs twice")
    if position != len(frames):
        raise ProtocolError(f"{len(frames)} frames where the header announces {position}")
    return header, {name: _assemble(name, found) for name, found in parts.items()}


def _append(name: str, part: str, array: NDArray, described: list[list[Any]], frames: list[Frame]) -> None:
    flat = np.ascontiguousarray(array).astype(dtype_of(array.dtype.name), copy=False)
    described.append([name, part, array.dtype.name, list(array.shape)])
    content = flat.reshape(-1).view(np.uint8).data if flat.nbytes else memoryview(b"")
    frames += [content[at : at + FRAME_BYTES] for at in range(0, len(content), FRAME_BYTES)]


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


def _check_entry(entry: Any) -> tuple[str, str, np.dtype[Any], tuple[int, ...]]:
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


def _take(
    frames: Sequence[Frame], position: int, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> tuple[NDArray, int]:
    nbytes = math.prod(shape) * dtype.itemsize
    end = position - (-nbytes // FRAME_BYTES)
    own = frames[position:end]
    found = sum(len(frame) for frame in own)
    if end > len(frames) or found != nbytes:
        raise ProtocolError(f"an array {shape} of {dtype.name} has {nbytes} bytes, but {found} arrived")
    return _join(own, dtype, nbytes).reshape(shape), end


def _join(frames: Sequence[Frame], dtype: np.dtype[Any], nbytes: int) -> NDArray:
    if len(frames) == 1:
        array = np.frombuffer(frames[0], dtype)
        # Small frames share the receive buffer at any offset, where arithmetic would be slow.
        return array if array.flags.aligned else array.copy()
    joined = np.empty(nbytes, np.uint8)
    at = 0
    for frame in frames:
        joined[at : at + len(frame)] = np.frombuffer(frame, np.uint8)
        at += len(frame)
    return joined.view(dtype)


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
