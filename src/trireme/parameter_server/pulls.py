"""Weights on their way from the servers to a worker, put together as whole variables or as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trireme.errors import UsageError
from trireme.parameter_server.dtypes import dtype_of
from trireme.parameter_server.gradients import NDArray
from trireme.parameter_server.messages import Pull, Values
from trireme.parameter_server.partition import Placement
from trireme.parameter_server.session import Session


@dataclass(frozen=True)
class _WantedRows:
    """Rows of one table: each once in ascending order, and where each was asked for."""

    unique: NDArray
    inverse: NDArray
    shape: tuple[int, ...]


class PendingPull:
    """Weights that were asked for. Their version counts from `result` on: gradients that are pushed before were
    computed with older ones."""

    def __init__(
        self,
        session: Session,
        placement: Placement,
        versions: list[int],
        numbers: Sequence[int],
        variables: Sequence[str],
        rows: Mapping[str, _WantedRows],
    ) -> None:
        self._session = session
        self._placement = placement
        self._versions = versions
        self._numbers = numbers
        self._variables = variables
        self._rows = rows
        self._result: dict[str, NDArray] | None = None

    def result(self) -> dict[str, NDArray]:
        """The weights by variable, some of them read-only. Waits for every server, each with its deadlines."""
        if self._result is None:
            found: dict[str, NDArray] = {}
            for server, number in enumerate(self._numbers):
                answer = self._session.wait(server, number, "weights")
                assert isinstance(answer, Values)
                self._versions[server] = answer.version
                found.update(answer.arrays)  # type: ignore[arg-type]
            whole = {name: self._join_slices(name, found) for name in self._variables}
            self._result = whole | {name: self._join_rows(name, w, found) for name, w in self._rows.items()}
        return self._result

    def _join_slices(self, variable: str, found: Mapping[str, NDArray]) -> NDArray:
        slices = self._placement.by_variable[variable]
        if len(slices) == 1:
            return found[slices[0].name]
        joined = np.empty(slices[0].variable_shape, dtype_of(slices[0].dtype))
        for piece in slices:
            joined[piece.start : piece.stop] = found[piece.name]
        return joined

    def _join_rows(self, variable: str, wanted: _WantedRows, found: Mapping[str, NDArray]) -> NDArray:
        first = self._placement.by_variable[variable][0]
        row_shape = first.variable_shape[1:]
        joined = np.empty((len(wanted.unique), *row_shape), dtype_of(first.dtype))
        for piece, part in self._placement.split_rows(variable, wanted.unique):
            joined[part] = found[piece.name]
        return joined[wanted.inverse].reshape(*wanted.shape, *row_shape)


def start_pull(
    session: Session,
    placement: Placement,
    versions: list[int],
    rows: Mapping[str, NDArray],
    variables: Sequence[str] | None,
) -> PendingPull:
    """Asks every server for its part; one that holds nothing of it answers too, so that all pushes are in."""
    if variables is None:
        variables = [name for name in placement.by_variable if name not in rows]
    unknown = sorted({*variables, *rows} - set(placement.by_variable))
    if unknown:
        raise UsageError(f"no variables {unknown}; the servers hold {sorted(placement.by_variable)}")
    wanted = {name: _wanted_rows(name, np.asarray(ids)) for name, ids in rows.items()}
    slices: list[list[str]] = [[] for _ in placement.by_server]
    for name in variables:
        for piece in placement.by_variable[name]:
            slices[placement.server_of[piece.name]].append(piece.name)
    row_parts: list[dict[str, NDArray]] = [{} for _ in placement.by_server]
    for name, want in wanted.items():
        for piece, part in placement.split_rows(name, want.unique):
            row_parts[placement.server_of[piece.name]][piece.name] = want.unique[part] - piece.start
    numbers = [
        session.send(server, Pull(tuple(slices[server]), row_parts[server]), is_awaited=True)
        for server in range(len(placement.by_server))
    ]
    return PendingPull(session, placement, versions, numbers, variables, wanted)


def _wanted_rows(variable: str, ids: NDArray) -> _WantedRows:
    if ids.size and ids.dtype.kind not in "iu":
        raise UsageError(f"the rows of {variable!r} must be integers, got {ids.dtype.name}")
    unique, inverse = np.unique(ids.reshape(-1).astype(np.int64, copy=False), return_inverse=True)
    return _WantedRows(unique, inverse.reshape(-1), ids.shape)
