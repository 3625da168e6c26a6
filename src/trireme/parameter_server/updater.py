"""What a server needs from whoever owns the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from trireme.parameter_server.gradients import Gradient, NDArray
from trireme.parameter_server.partition import Slice


class Updater(Protocol):
    """Holds the values of a server's slices and the optimizer's state for them.

    A server calls `configure` first, then `create` for each of its slices, then the rest in any order, always
    from one thread. After a restart it calls `configure` with all settings so far, `create` with the saved
    values, and `restore` with what `optimizer_state` gave.
    """

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Takes settings (plain JSON) from the chief: at first the optimizer's configuration, later changes."""

    def create(self, piece: Slice, value: NDArray | None) -> None:
        """Makes a slice with `value`, or with what `piece.initializer` describes if `value` is None."""

    def assign(self, name: str, value: NDArray) -> None:
        """Gives a slice another value; what the optimizer remembers stays."""

    def apply(self, gradients: Mapping[str, Gradient]) -> None:
        """One optimizer step, with the gradients by slice name.

        They come all together because a step counts once for a schedule, and a norm is over all of them. The
        rows of a `RowGradient` are ascending without duplicates. A slice without a gradient had none.
        """

    def read(self, name: str, rows: NDArray | None) -> NDArray:
        """The value of a slice, or of some of its rows, in an array that later updates leave as it is."""

    def optimizer_state(self) -> Mapping[str, NDArray]:
        """Everything beside the values that the next step depends on, under names of the updater's choice."""

    def restore(self, optimizer_state: Mapping[str, NDArray]) -> None:
        """Goes on from what `optimizer_state` gave."""
