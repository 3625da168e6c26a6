"""What all agents of a run know of it, so that the loss of any one of them, the chief's too, loses none of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trireme.recovery.policy import FailedAttempt


@dataclass(frozen=True)
class Record:
    """How a run went so far.

    Attributes:
        num_starts: how often its workers have been started.
        is_open: whether the last start is not known to have ended.
        seed: what the workers' random numbers begin with in every generation; None before the first.
        history: how the starts failed, oldest first.
    """

    num_starts: int = 0
    is_open: bool = False
    seed: int | None = None
    history: tuple[FailedAttempt, ...] = ()

    @property
    def generation(self) -> int:
        """The number of the last start, counted from 0; -1 before it."""
        return self.num_starts - 1

    def started(self, seed: int) -> Record:
        """The record when the workers start once more; a run keeps its first seed."""
        return replace(
            self,
            num_starts=self.num_starts + 1,
            is_open=True,
            seed=seed if self.seed is None else self.seed,
        )

    def ended(self, failed: FailedAttempt) -> Record:
        """The record when it is known how the last start failed."""
        return replace(self, is_open=False, history=(*self.history, failed))

    def is_newer_than(self, other: Record) -> bool:
        """Whether this one knows of something that happened later."""
        return (self.num_starts, len(self.history)) > (other.num_starts, len(other.history))
