"""Into how many slices a variable is cut: what users choose by a partitioner. Needs no numpy to be imported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from trireme.errors import UsageError


@dataclass(frozen=True)
class VariableSpec:
    """What the servers must know about one variable.

    `initializer` describes the initial value in words that the servers' `Updater` understands (plain JSON);
    None means that the chief sends the value. A table that no worker can hold needs an initializer.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    trainable: bool = True
    initializer: Mapping[str, Any] | None = None

    @property
    def num_rows(self) -> int:
        """Length of the first axis; a scalar is one row."""
        return self.shape[0] if self.shape else 1

    @property
    def nbytes(self) -> int:
        # Not at the top: `import trireme` must not bring numpy.
        from trireme.parameter_server.dtypes import dtype_of

        return math.prod(self.shape) * dtype_of(self.dtype).itemsize


Partitioner: TypeAlias = Callable[[VariableSpec], int]


@dataclass(frozen=True)
class FixedShardsPartitioner:
    """Cuts every variable into `num_shards` slices, or into single rows if it has fewer."""

    num_shards: int

    def __post_init__(self) -> None:
        require_positive(num_shards=self.num_shards)

    def __call__(self, variable: VariableSpec) -> int:
        return _between(1, self.num_shards, variable.num_rows)


@dataclass(frozen=True)
class MinSizePartitioner:
    """Cuts a variable into as many slices as possible, at most `max_shards`, none under `min_shard_bytes`."""

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1

    def __post_init__(self) -> None:
        require_positive(min_shard_bytes=self.min_shard_bytes, max_shards=self.max_shards)

    def __call__(self, variable: VariableSpec) -> int:
        row_bytes = variable.nbytes // max(1, variable.num_rows)
        if row_bytes == 0:
            return 1
        rows_per_slice = math.ceil(self.min_shard_bytes / row_bytes)
        return _between(1, min(self.max_shards, variable.num_rows // rows_per_slice), variable.num_rows)


@dataclass(frozen=True)
class MaxSizePartitioner:
    """Cuts a variable into as few slices as possible, none over `max_shard_bytes`.

    A single row is never cut, and `max_shards` wins over the size.
    """

    max_shard_bytes: int
    max_shards: int | None = None

    def __post_init__(self) -> None:
        require_positive(max_shard_bytes=self.max_shard_bytes)
        if self.max_shards is not None:
            require_positive(max_shards=self.max_shards)

    def __call__(self, variable: VariableSpec) -> int:
        row_bytes = variable.nbytes // max(1, variable.num_rows)
        if row_bytes == 0:
            return 1
        rows_per_slice = max(1, self.max_shard_bytes // row_bytes)
        num_slices = math.ceil(variable.num_rows / rows_per_slice)
        return _between(1, num_slices, min(variable.num_rows, self.max_shards or num_slices))


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))


def require_positive(**values: int) -> None:
    """UsageError for values below 1."""
    for name, value in values.items():
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}")
