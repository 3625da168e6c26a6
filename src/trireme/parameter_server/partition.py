"""Where every row of every variable lives.

Large variables are cut into slices of whole rows by a partitioner; the slices are then spread over the servers,
balanced by bytes. Everything here is a pure function of its arguments, so that every worker finds the same
placement without asking anybody; `Placement.fingerprint` lets a server notice when one did not.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from trireme.errors import UsageError
from trireme.parameter_server.dtypes import dtype_of
from trireme.parameter_server.gradients import Gradient, NDArray, RowGradient


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
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize


@dataclass(frozen=True)
class Slice:
    """Rows `start` to `stop` of a variable: the unit that one server owns and updates.

    `shape` is the slice's own shape, `variable_shape` that of the whole variable.
    """

    name: str
    variable: str
    start: int
    stop: int
    shape: tuple[int, ...]
    variable_shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    initializer: Mapping[str, Any] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize

    @property
    def is_whole(self) -> bool:
        """Is this the only slice of its variable?"""
        return self.shape == self.variable_shape


Partitioner: TypeAlias = Callable[[VariableSpec], int]


@dataclass(frozen=True)
class FixedShardsPartitioner:
    """Cuts every variable into `num_shards` slices, or into single rows if it has fewer."""

    num_shards: int

    def __post_init__(self) -> None:
        _require_positive(num_shards=self.num_shards)

    def __call__(self, variable: VariableSpec) -> int:
        return _between(1, self.num_shards, variable.num_rows)


@dataclass(frozen=True)
class MinSizePartitioner:
    """Cuts a variable into as many slices as possible, at most `max_shards`, none under `min_shard_bytes`."""

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1

    def __post_init__(self) -> None:
        _require_positive(min_shard_bytes=self.min_shard_bytes, max_shards=self.max_shards)

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
        _require_positive(max_shard_bytes=self.max_shard_bytes)
        if self.max_shards is not None:
            _require_positive(max_shards=self.max_shards)

    def __call__(self, variable: VariableSpec) -> int:
        row_bytes = variable.nbytes // max(1, variable.num_rows)
        if row_bytes == 0:
            return 1
        rows_per_slice = max(1, self.max_shard_bytes // row_bytes)
        num_slices = math.ceil(variable.num_rows / rows_per_slice)
        return _between(1, num_slices, min(variable.num_rows, self.max_shards or num_slices))


def cut(variable: VariableSpec, num_slices: int) -> list[Slice]:
    """`variable` in `num_slices` slices of whole rows whose lengths differ by at most one row."""
    if num_slices == 1:
        return [_slice(variable, 0, variable.num_rows, variable.name)]
    bounds = [index * variable.num_rows // num_slices for index in range(num_slices + 1)]
    return [_slice(variable, a, b, f"{variable.name}[{a}:{b}]") for a, b in pairwise(bounds)]


@dataclass(frozen=True)
class Placement:
    """Which server holds which slice. `by_server[i]` and `by_variable[name]` are in a fixed order."""

    by_server: tuple[tuple[Slice, ...], ...]
    by_variable: Mapping[str, tuple[Slice, ...]]
    server_of: Mapping[str, int] = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """Equal exactly when two processes put the same slices on the same servers."""
        content = [[(s.name, s.shape, s.dtype, s.trainable) for s in slices] for slices in self.by_server]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def server_bytes(self) -> list[int]:
        return [sum(piece.nbytes for piece in slices) for slices in self.by_server]

    def split(self, variable: str, value: NDArray) -> Iterator[tuple[Slice, NDArray]]:
        """Every slice of `variable` with its rows of `value` (views, nothing is copied)."""
        for piece in self.by_variable[variable]:
            yield piece, value if piece.is_whole else value[piece.start : piece.stop]

    def split_rows(self, variable: str, rows: NDArray) -> Iterator[tuple[Slice, slice]]:
        """Every slice that holds some of `rows` (ascending), and the part of `rows` that it holds."""
        slices = self.by_variable[variable]
        num_rows = slices[-1].stop
        if len(rows) and not (rows[0] >= 0 and rows[-1] < num_rows):
            raise UsageError(
                f"{variable} has the rows 0 to {num_rows - 1}, but rows {rows[0]} to {rows[-1]} were asked for"
            )
        bounds = np.searchsorted(rows, [piece.start for piece in slices] + [num_rows])
        for piece, first, last in zip(slices, bounds, bounds[1:], strict=False):
            if first < last:
                yield piece, slice(int(first), int(last))

    def split_gradient(self, variable: str, gradient: Gradient) -> Iterator[tuple[Slice, Gradient]]:
        """The parts of a gradient of the whole variable; `gradient.rows` must be ascending."""
        if not isinstance(gradient, RowGradient):
            yield from self.split(variable, gradient)
            return
        for piece, part in self.split_rows(variable, gradient.rows):
            yield piece, RowGradient(gradient.rows[part] - piece.start, gradient.values[part])


def place(
    variables: Sequence[VariableSpec], num_servers: int, partitioner: Partitioner | None = None
) -> Placement:
    """Cuts and spreads `variables`: the largest slice first, each to the server that holds least so far.

    No server ends with more than the mean plus one slice (Graham, 1969: a third over the best possible).
    The default partitioner gives each server at most one slice of each variable, none under 256 KiB.
    """
    _require_positive(num_servers=num_servers)
    _require_distinct([variable.name for variable in variables])
    count = partitioner or MinSizePartitioner(max_shards=num_servers)
    by_variable = {variable.name: tuple(cut(variable, count(variable))) for variable in variables}
    slices = [piece for pieces in by_variable.values() for piece in pieces]
    _require_distinct([piece.name for piece in slices])
    load = [0] * num_servers
    server_of: dict[str, int] = {}
    for piece in sorted(slices, key=lambda piece: -piece.nbytes):
        server = load.index(min(load))
        load[server] += piece.nbytes
        server_of[piece.name] = server
    by_server = tuple(
        tuple(piece for piece in slices if server_of[piece.name] == server) for server in range(num_servers)
    )
    return Placement(by_server, by_variable, server_of)


def _slice(variable: VariableSpec, start: int, stop: int, name: str) -> Slice:
    shape = (stop - start, *variable.shape[1:]) if variable.shape else ()
    return Slice(
        name, variable.name, start, stop, shape, variable.shape, variable.dtype, variable.trainable,
        variable.initializer,
    )  # fmt: skip


def _require_distinct(names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise UsageError(f"every variable and slice needs its own name, but {twice} occur more than once")


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}")
