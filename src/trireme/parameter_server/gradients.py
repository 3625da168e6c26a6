"""What a worker pushes for one slice of a variable, and how the pushes of one step become one gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

NDArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# Sums of these lose digits, so they are summed in float32 and rounded once at the end.
_NARROW_FLOATS = ("float16", "bfloat16")


@dataclass(frozen=True, eq=False)
class RowGradient:
    """The gradient of a few rows of a table; every other row's gradient is zero.

    `rows` holds integers, one per entry of `values`, which has the shape `(len(rows), *row_shape)`.
    A row may occur more than once: its values add up.
    """

    rows: NDArray
    values: NDArray

    def __post_init__(self) -> None:
        if self.rows.ndim != 1 or self.rows.dtype.kind not in "iu":
            raise ValueError(
                f"rows must be a list of integers, got shape {self.rows.shape} of {self.rows.dtype}"
            )
        if self.values.ndim == 0 or self.values.shape[0] != self.rows.shape[0]:
            raise ValueError(f"{self.rows.shape[0]} rows need as many values, got shape {self.values.shape}")

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + self.values.nbytes)


Gradient: TypeAlias = "NDArray | RowGradient"
Contribution: TypeAlias = tuple[float, Mapping[str, Gradient]]


def merge_duplicate_rows(gradient: RowGradient) -> RowGradient:
    """The same gradient with every row once, in ascending order."""
    rows, inverse = np.unique(gradient.rows, return_inverse=True)
    if len(rows) == len(gradient.rows):
        if np.array_equal(rows, gradient.rows):
            return gradient
        order = np.argsort(gradient.rows)
        return RowGradient(rows, gradient.values[order])
    order = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[order], np.arange(len(rows)))
    values = np.add.reduceat(_widen(gradient.values[order]), starts, axis=0)
    return RowGradient(rows, values.astype(gradient.values.dtype, copy=False))


def combine(contributions: Sequence[Contribution], reduction: str) -> dict[str, Gradient]:
    """One gradient per slice out of the `(weight, gradients)` of several workers.

    `reduction="sum"` gives the sum of weight times gradient, `"mean"` divides it by the sum of weights. A
    slice that a worker left out counts as zero. No weight at all (all shards empty) gives no gradient.
    The order of the contributions is the order of the additions, so a fixed order gives fixed bits.
    """
    total = sum(weight for weight, _ in contributions)
    if total <= 0:
        return {}
    divisor = total if reduction == "mean" else 1.0
    used = [(weight / divisor, gradients) for weight, gradients in contributions if weight > 0]
    names = dict.fromkeys(name for _, gradients in used for name in gradients)
    return {name: _add([(f, g[name]) for f, g in used if name in g]) for name in names}


def _add(terms: Sequence[tuple[float, Gradient]]) -> Gradient:
    rows = [(factor, gradient) for factor, gradient in terms if isinstance(gradient, RowGradient)]
    dense = [(factor, gradient) for factor, gradient in terms if not isinstance(gradient, RowGradient)]
    if not dense:
        return _add_rows(rows)
    if len(terms) == 1 and dense[0][0] == 1.0:
        return dense[0][1]
    result = np.array(_scaled(dense[0][1], dense[0][0]))
    for factor, gradient in dense[1:]:
        result += _scaled(gradient, factor)
    for factor, sparse in rows:
        np.add.at(result, sparse.rows, _scaled(sparse.values, factor))
    return np.asarray(result).astype(dense[0][1].dtype, copy=False)


def _add_rows(terms: Sequence[tuple[float, RowGradient]]) -> RowGradient:
    if len(terms) == 1 and terms[0][0] == 1.0:
        return merge_duplicate_rows(terms[0][1])
    dtype = terms[0][1].values.dtype
    rows = np.concatenate([gradient.rows for _, gradient in terms])
    values = np.concatenate([_scaled(gradient.values, factor) for factor, gradient in terms])
    merged = merge_duplicate_rows(RowGradient(rows, values))
    return RowGradient(merged.rows, merged.values.astype(dtype, copy=False))


def _scaled(values: NDArray, factor: float) -> NDArray:
    wide = _widen(values)
    return wide if factor == 1.0 else wide * wide.dtype.type(factor)


def _widen(values: NDArray) -> NDArray:
    return values.astype(np.float32) if values.dtype.name in _NARROW_FLOATS else values


def total_bytes(gradients: Iterable[Gradient]) -> int:
    """Bytes of all the arrays in `gradients`."""
    return sum(int(gradient.nbytes) for gradient in gradients)
