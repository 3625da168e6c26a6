"""What one backup holds, in memory: named arrays, named byte strings and a state that JSON can tell."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trireme.errors import UsageError


@dataclass(frozen=True)
class Snapshot:
    """The state of a run after `step` steps of `epoch`.

    `arrays` takes anything `numpy.asarray` takes, of any shape and of any fixed-size type, bfloat16 and
    float8 included. `state` takes what JSON takes (numpy scalars become numbers, tuples become lists, every
    key must be text). `blobs` takes bytes whose format is somebody else's, such as an iterator's own
    checkpoint. `name` is the backup's, once it was read from one.
    """

    epoch: int
    step: int
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        arrays = {name: np.asarray(array) for name, array in self.arrays.items()}
        refused = [
            f"{name!r} ({array.dtype})" for name, array in arrays.items() if not _is_storable(array.dtype)
        ]
        if refused:
            raise UsageError(
                f"A backup stores arrays of numbers, text and dates, not {', '.join(refused)}: "
                "turn them into such arrays, or into bytes under `blobs`."
            )
        object.__setattr__(self, "arrays", arrays)

    def copy(self, into: Mapping[str, np.ndarray] | None = None) -> "Snapshot":
        """Return a snapshot that shares no memory with this one.

        Arrays of `into` that have the right name, shape and type are filled and used: a copy into memory that
        was used before took half the time of one into fresh memory.
        """
        arrays = {name: _copy_array(array, (into or {}).get(name)) for name, array in self.arrays.items()}
        blobs = {name: bytes(blob) for name, blob in self.blobs.items()}
        return replace(self, arrays=arrays, state=decode_state(encode_state(self.state)), blobs=blobs)


def encode_state(state: Mapping[str, Any]) -> bytes:
    """Return the state as JSON; NaN and infinities are kept, as Python's reader takes them."""
    _check_keys(state, "state")
    return json.dumps(state, default=_plain_number).encode()


def decode_state(text: bytes) -> dict[str, Any]:
    """Return what `encode_state` was given."""
    return json.loads(text)


def type_name(dtype: np.dtype) -> str:
    """Return a name that `type_named` takes, byte order included."""
    # Types that another library registered with numpy (bfloat16) share one short form among them ("<V2").
    is_registered = dtype.isbuiltin == 2
    return dtype.name if is_registered else dtype.str


def type_named(name: str) -> np.dtype:
    """Return the numpy type of that name; `TypeError` if there is none that a backup may hold."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = _extension_type(name)
    if dtype.hasobject or type_name(dtype) != name:
        raise TypeError(f"{name!r} is no type of a backup's arrays")
    return dtype


def _extension_type(name: str) -> np.dtype:
    # Keras brings ml_dtypes along; its types are no part of numpy but behave like one.
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, None) or _unknown(name))


def _unknown(name: str) -> Any:
    raise TypeError(f"{name!r} is a type that neither numpy nor ml_dtypes has")


def _is_storable(dtype: np.dtype) -> bool:
    try:
        return type_named(type_name(dtype)) == dtype
    except TypeError:
        return False


def _copy_array(array: np.ndarray, buffer: np.ndarray | None) -> np.ndarray:
    if buffer is None or (buffer.shape, buffer.dtype) != (array.shape, array.dtype):
        return np.array(array, order="C")
    np.copyto(buffer, array)
    return buffer


def _check_keys(value: Any, place: str) -> None:
    """JSON would turn the key 3 into "3" without a word, and the reader would look for 3 in vain."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(f"The keys of a backup's {place} must be text, but one is {key!r}.")
            _check_keys(item, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item, place)


def _plain_number(value: Any) -> Any:
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.generic) and value.dtype.kind in "fV":  # V: bfloat16 and the like
        return float(value)
    raise UsageError(
        f"The state of a backup takes what JSON takes, not {type(value).__name__} ({value!r:.80}): "
        "put arrays under `arrays` and bytes under `blobs`."
    )
