"""For tests of programs that train on several workers, and of what they survive."""

from trireme.testing.fault_plan import FaultPlan
from trireme.testing.run_workers import WorkersFailed, run_workers

__all__ = ["FaultPlan", "WorkersFailed", "run_workers"]
