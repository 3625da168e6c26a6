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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from trireme.errors import UsageError
from trireme.parameter_server.dtypes import dtype_of
from trireme.parameter_server.gradients import Gradient, NDArray, RowGradient
from trireme.parameter_server.partitioners import (
    MinSizePartitioner,
    Partitioner,
    VariableSpec,
    require_positive,
)


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
        """The parts of a gradient of the whole variable; `gradient.rows` must be ascending.

        A slice that holds none of the rows gets a gradient of no rows: it had one, which is zero.
        """
        if not isinstance(gradient, RowGradient):
            yield from self.split(variable, gradient)
            return
        parts = {piece.name: part for piece, part in self.split_rows(variable, gradient.rows)}
        for piece in self.by_variable[variable]:
            part = parts.get(piece.name, slice(0, 0))
            yield piece, RowGradient(gradient.rows[part] - piece.start, gradient.values[part])


def place(
    variables: Sequence[VariableSpec], num_servers: int, partitioner: Partitioner | None = None
) -> Placement:
    """Cuts and spreads `variables`: the largest slice first, each to the server that holds least so far.

    No server ends with more than the mean plus one slice (Graham, 1969: a third over the best possible).
    The default partitioner gives each server at most one slice of each variable, none under 256 KiB.
    """
    require_positive(num_servers=num_servers)
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
