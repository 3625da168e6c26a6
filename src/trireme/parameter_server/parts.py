"""What a worker hands over, checked against the variables and made ready for the servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trireme.errors import UsageError
from trireme.parameter_server.dtypes import dtype_of
from trireme.parameter_server.gradients import Gradient, NDArray, RowGradient, merge_duplicate_rows
from trireme.parameter_server.messages import Assign, Create
from trireme.parameter_server.partition import Placement, Slice

_MESSAGE_BYTES = 64 << 20


def creations(
    placement: Placement, server: int, values: Mapping[str, NDArray], settings: Mapping[str, Any]
) -> Iterator[Create]:
    """The variables of one server in messages of limited size."""
    slices: list[Slice] = []
    arrays: dict[str, Gradient] = {}
    for piece in placement.by_server[server]:
        if sum(array.nbytes for array in arrays.values()) >= _MESSAGE_BYTES:
            yield Create(tuple(slices), False, settings, arrays)
            slices, arrays, settings = [], {}, {}
        slices.append(piece)
        if piece.initializer is None:
            arrays[piece.name] = _part_of_value(piece, values)
    yield Create(tuple(slices), True, settings, arrays)


def assignments(placement: Placement, server: int, values: Mapping[str, NDArray]) -> Iterator[Assign]:
    """Other values of whole variables, as far as one server has them; a message for each slice."""
    for piece in placement.by_server[server]:
        if piece.variable in values:
            yield Assign({piece.name: _part_of_value(piece, values)})


def _part_of_value(piece: Slice, values: Mapping[str, NDArray]) -> NDArray:
    value = values.get(piece.variable)
    if value is None or value.shape != piece.variable_shape:
        found = "none" if value is None else f"one of shape {value.shape}"
        raise UsageError(
            f"variable {piece.variable!r} needs a value of shape {piece.variable_shape} or an initializer in "
            f"its VariableSpec, got {found}"
        )
    part = value if piece.is_whole else value[piece.start : piece.stop]
    return part.astype(dtype_of(piece.dtype), copy=False)


def check_gradient(placement: Placement, variable: str, gradient: Gradient) -> Gradient:
    """The gradient in the variable's dtype, rows ascending; UsageError if it does not fit the variable."""
    slices = placement.by_variable.get(variable)
    if slices is None:
        raise UsageError(f"no variable {variable!r}; the servers hold {sorted(placement.by_variable)}")
    shape, dtype = slices[0].variable_shape, dtype_of(slices[0].dtype)
    if isinstance(gradient, RowGradient):
        if not shape or gradient.values.shape[1:] != shape[1:]:
            raise UsageError(f"rows of shape {gradient.values.shape[1:]} for {variable!r} of shape {shape}")
        values = gradient.values.astype(dtype, copy=False)
        return merge_duplicate_rows(RowGradient(gradient.rows, values))
    if gradient.shape != shape:
        raise UsageError(f"a gradient of shape {gradient.shape} for {variable!r} of shape {shape}")
    return gradient.astype(dtype, copy=False)
