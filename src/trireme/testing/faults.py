"""Makes the faults of TRIREME_FAULTS happen in a worker; see `fault_plan.py` for what they are."""

import os
from typing import Any

from trireme.recovery.backups import Backups
from trireme.testing.fault_plan import VARIABLE, FaultPlan, perform

GENERATION_VARIABLE = "TRIREME_GENERATION"


def install_from_environ(num_workers: int, rank: int) -> None:
    """Lets the plan in TRIREME_FAULTS happen to this process: before its steps, before it reads backups.

    Raises:
        UsageError: the plan cannot be understood, or names workers that the run does not have.
    """
    plan = FaultPlan.from_environ(os.environ)
    plan.check_ranks(num_workers)
    if not plan.faults:
        return
    from trireme.backends import backup, fitting

    generation = int(os.environ.get(GENERATION_VARIABLE, "0"))

    def before_step(fit: Any) -> None:
        due = plan.due(rank, fit.step, generation, epoch=fit.epoch, step_in_epoch=fit.batch)
        for fault in due:
            perform(fault)

    def before_reading(backups: Backups) -> None:
        for fault in plan.due_before_reading_backups(generation):
            perform(fault, backups)

    fitting.step_listeners.append(before_step)
    backup.reading_listeners.append(before_reading)


__all__ = ["VARIABLE", "install_from_environ"]
