"""The element types that travel between workers and servers, by name."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

_PLAIN = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
)  # fmt: skip


@cache
def dtype_of(name: str) -> np.dtype[Any]:
    """The little-endian numpy dtype called `name`; ValueError when it is not one that travels."""
    if name in _PLAIN:
        return np.dtype(name).newbyteorder("<")
    if name == "bfloat16":
        import ml_dtypes  # comes with Keras; a server that only moves float32 never needs it

        return np.dtype(ml_dtypes.bfloat16)
    raise ValueError(f"{name!r} is not one of {', '.join(_PLAIN)}, bfloat16")


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """The name under which `dtype` travels."""
    return dtype.name
