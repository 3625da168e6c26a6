"""How a server behaves, what it counts, and how it learns of time."""

from __future__ import annotations

from dataclasses import dataclass

from trireme.errors import UsageError

# A `max_staleness` that the first worker's greeting decides, for servers that start before the user's program.
TOLD_BY_WORKERS = -1


@dataclass(frozen=True)
class Rules:
    """How the servers of a run behave; equal on all of them except for `is_chief` (it hands out the rows).

    `max_staleness`: None, a worker never waits for another; k, it may be k steps ahead of the slowest; 0, lock
    step: the pushes of a step become one update; `TOLD_BY_WORKERS`, the first worker's greeting says which.
    `reduction` says how pushes become an update: "mean" or "sum", both by weight.
    A worker that is silent for `worker_timeout_s` is lost.
    """

    num_workers: int
    run_id: str = ""
    is_chief: bool = True
    max_staleness: int | None = None
    reduction: str = "mean"
    worker_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise UsageError(f"num_workers must be at least 1, got {self.num_workers}")
        if self.max_staleness is not None and self.max_staleness < TOLD_BY_WORKERS:
            raise UsageError(f"max_staleness must be None or at least 0, got {self.max_staleness}")
        if self.reduction not in ("mean", "sum"):
            raise UsageError(f"reduction must be 'mean' or 'sum', got {self.reduction!r}")
        if self.worker_timeout_s <= 0:
            raise UsageError(f"worker_timeout_s must be positive, got {self.worker_timeout_s}")


@dataclass
class Statistics:
    """What a server counted since it started. Staleness: how many updates the pushed gradients had missed."""

    updates: int = 0
    pushes: int = 0
    duplicates: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    workers_lost: int = 0

    def count_staleness(self, staleness: int) -> None:
        self.staleness_sum += staleness
        self.staleness_max = max(self.staleness_max, staleness)


@dataclass(frozen=True)
class Tick:
    """Time has passed; `now_s` is a monotonic clock."""

    now_s: float
