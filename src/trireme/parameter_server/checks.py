"""Does a well-formed request make sense for the slices of this server? Each check returns text when not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trireme.parameter_server.dtypes import dtype_of
from trireme.parameter_server.gradients import RowGradient
from trireme.parameter_server.messages import Arrays, Create, Gather, Hello, NextRange
from trireme.parameter_server.partition import Slice
from trireme.parameter_server.rules import Rules
from trireme.parameter_server.shares import Shares

Slices = Mapping[str, Slice]


def wrong_in_hello(hello: Hello, rules: Rules, placement: str | None, told_by_workers: bool) -> str | None:
    """A worker of another run, or one that trains in another way than the first one does."""
    if hello.run_id != rules.run_id:
        return f"this server belongs to run {rules.run_id!r}, the worker to run {hello.run_id!r}"
    if placement not in (None, hello.placement):
        return (
            "this worker places other variables on the servers than the first one did "
            f"({hello.placement}, not {placement}): all must build the same model"
        )
    if told_by_workers and placement is not None and hello.max_staleness != rules.max_staleness:
        return f"max_staleness is {rules.max_staleness} on other workers, {hello.max_staleness} on this one"
    return None


def wrong_in_create(create: Create, known: Slices) -> str | None:
    """A slice that contradicts itself, its value, or what was created before under its name."""
    for piece in create.slices:
        try:
            dtype_of(piece.dtype)
        except (ValueError, ImportError) as error:
            return f"slice {piece.name!r}: {error}"
        if known.get(piece.name, piece) != piece:
            return f"slice {piece.name!r} exists as {known[piece.name]}, not as {piece}"
        if piece.shape[:1] != ((piece.stop - piece.start,) if piece.shape else ()):
            return f"slice {piece.name!r} has rows {piece.start} to {piece.stop} and the shape {piece.shape}"
        value = create.arrays.get(piece.name)
        if (value is None) == (piece.initializer is None):
            return f"slice {piece.name!r} needs either a value or an initializer"
        if value is not None and _wrong_array(piece, value):
            return _wrong_array(piece, value)
    extra = set(create.arrays) - {piece.name for piece in create.slices}
    return f"values for {sorted(extra)}, which are not among the slices" if extra else None


def wrong_in_assign(arrays: Arrays, known: Slices) -> str | None:
    """A value for no slice of this server, or of another shape or dtype."""
    for name, value in arrays.items():
        if name not in known:
            return f"a value for {name!r}, which is not on this server"
        if wrong := _wrong_array(known[name], value):
            return wrong
    return None


def wrong_in_push(arrays: Arrays, known: Slices) -> str | None:
    """A gradient for no slice of this server, of another shape or dtype, or for rows that do not exist."""
    for name, gradient in arrays.items():
        piece = known.get(name)
        if piece is None:
            return f"a gradient for {name!r}, which is not on this server"
        if not isinstance(gradient, RowGradient):
            wrong = _wrong_array(piece, gradient)
        elif not piece.shape or gradient.values.shape[1:] != piece.shape[1:]:
            wrong = f"row gradient of shape {gradient.values.shape} for {name!r} of shape {piece.shape}"
        elif gradient.values.dtype != dtype_of(piece.dtype):
            wrong = f"row gradient of {gradient.values.dtype.name} for {name!r} of {piece.dtype}"
        else:
            wrong = _wrong_rows(piece, gradient.rows)
        if wrong:
            return wrong
    return None


def wrong_in_pull(names: tuple[str, ...], arrays: Arrays, known: Slices) -> str | None:
    """A slice that is not on this server, or rows that do not exist."""
    missing = sorted({*names, *arrays} - set(known))
    if missing:
        return f"{missing} are not on this server"
    for name, rows in arrays.items():
        if isinstance(rows, RowGradient) or rows.ndim != 1 or rows.dtype.kind not in "iu":
            return f"the rows of {name!r} must be a list of integers"
        if not known[name].shape:
            return f"{name!r} is a scalar and has no rows"
        wrong = _wrong_rows(known[name], rows)
        if wrong:
            return wrong
    return None


def wrong_in_rows(ask: NextRange | Gather, rules: Rules) -> str | None:
    """The wrong server, or batches without rows."""
    if not rules.is_chief:
        return "this server hands out no rows: ask server 0"
    has_none = isinstance(ask, NextRange) and not ask.batch_rows
    return "rows are handed out in batches of at least one row" if has_none else None


def wrong_in_totals(arrays: Arrays, shares: Shares) -> str | None:
    """Totals that are not plain arrays of numbers, or of another shape than those that came before."""
    totals = {name: value for name, value in arrays.items() if not isinstance(value, RowGradient)}
    for name, value in totals.items():
        if value.dtype.kind not in "fiu":
            return f"the total {name!r} must be an array of numbers, got {value.dtype.name}"
    if len(totals) < len(arrays) or not shares.fits(totals):
        return "totals must have the same names and shapes in every range of an epoch"
    return None


def _wrong_array(piece: Slice, value: object) -> str | None:
    if (
        not isinstance(value, np.ndarray)
        or value.shape != piece.shape
        or value.dtype != dtype_of(piece.dtype)
    ):
        found = f"{value.shape} of {value.dtype.name}" if isinstance(value, np.ndarray) else "rows"
        return f"{piece.name!r} is an array {piece.shape} of {piece.dtype}, but {found} came"
    return None


def _wrong_rows(piece: Slice, rows: np.ndarray) -> str | None:
    if rows.size and not (int(rows.min()) >= 0 and int(rows.max()) < piece.shape[0]):
        return f"{piece.name!r} has {piece.shape[0]} rows, but rows {rows.min()} to {rows.max()} were named"
    return None
