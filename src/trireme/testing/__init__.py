"""For tests of programs that train on several workers."""

from trireme.testing.run_workers import WorkersFailed, run_workers

__all__ = ["WorkersFailed", "run_workers"]
