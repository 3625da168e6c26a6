"""A snapshot as bytes, for the way from one worker to another; what goes to a disk is `backup_file.py`'s."""

import json
import struct

import numpy as np

from trireme.recovery.snapshot import Snapshot, decode_state, encode_state, type_name, type_named

_LENGTH = struct.Struct("<QQ")


def pack(snapshot: Snapshot) -> bytes:
    """Return bytes from which `unpack` makes an equal snapshot; blobs do not travel."""
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in snapshot.arrays.values()]
    described = [
        {"name": name, "type": type_name(array.dtype), "shape": list(array.shape)}
        for name, array in snapshot.arrays.items()
    ]
    header = {"epoch": snapshot.epoch, "step": snapshot.step, "name": snapshot.name, "arrays": described}
    texts = [json.dumps(header).encode(), encode_state(snapshot.state)]
    return b"".join([_LENGTH.pack(*map(len, texts)), *texts, *(part.data for part in parts)])


def unpack(packed: bytes | memoryview) -> Snapshot:
    """Return what `pack` was given. Its arrays are views of `packed`."""
    view = memoryview(packed)
    header_length, state_length = _LENGTH.unpack_from(view)
    position = _LENGTH.size
    header = json.loads(bytes(view[position : position + header_length]))
    position += header_length
    state = decode_state(bytes(view[position : position + state_length]))
    position += state_length
    arrays = {}
    for entry in header["arrays"]:
        dtype, shape = type_named(entry["type"]), entry["shape"]
        end = position + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays[entry["name"]] = np.frombuffer(view[position:end], np.uint8).view(dtype).reshape(shape)
        position = end
    return Snapshot(header["epoch"], header["step"], arrays, state, name=header["name"])
