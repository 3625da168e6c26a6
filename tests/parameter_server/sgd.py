"""The plainest optimizer there is, for servers under test."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trireme.parameter_server import Gradient, RowGradient, Slice


class SgdUpdater:
    """`value -= learning_rate * gradient`, and a count of the steps as the optimizer's state."""

    def __init__(self) -> None:
        self.learning_rate = 1.0
        self.values: dict[str, np.ndarray] = {}
        self.num_steps = 0

    def configure(self, settings: Mapping[str, Any]) -> None:
        self.learning_rate = settings.get("learning_rate", self.learning_rate)

    def create(self, piece: Slice, value: np.ndarray | None) -> None:
        if value is None:
            value = np.full(piece.shape, piece.initializer["constant"], piece.dtype)
        self.values[piece.name] = value

    def assign(self, name: str, value: np.ndarray) -> None:
        self.values[name] = value

    def apply(self, gradients: Mapping[str, Gradient]) -> None:
        self.num_steps += 1
        for name, gradient in gradients.items():
            if isinstance(gradient, RowGradient):
                self.values[name][gradient.rows] -= self.learning_rate * gradient.values
            else:
                self.values[name] -= (self.learning_rate * gradient).astype(gradient.dtype, copy=False)

    def read(self, name: str, rows: np.ndarray | None) -> np.ndarray:
        return self.values[name].copy() if rows is None else self.values[name][rows]

    def optimizer_state(self) -> Mapping[str, np.ndarray]:
        return {"num_steps": np.asarray(self.num_steps)}

    def restore(self, optimizer_state: Mapping[str, np.ndarray]) -> None:
        self.num_steps = int(optimizer_state["num_steps"])
