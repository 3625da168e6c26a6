"""A run that is started again when it fails: the attempts so far, and what follows the last of them."""

import time

from trireme.launch.decision import FAILED, STUCK, Outcome
from trireme.launch.signals import Signals
from trireme.recovery.policy import Decision, FailedAttempt, RestartPolicy, decide

_LOOK_EVERY_S = 0.1


class Restarts:
    """The failed attempts of one run."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._history: list[FailedAttempt] = []

    def after(self, outcome: Outcome) -> Decision | None:
        """What follows the end of an attempt; None when it was no failure, so that nothing does."""
        failed = failed_attempt(outcome)
        if failed is None or self._policy.max_restarts == 0:
            return None
        decision = decide(failed, self._history, self._policy)
        self._history.append(failed)
        return decision


def failed_attempt(outcome: Outcome) -> FailedAttempt | None:
    """The failure behind the end of a run, or None where it has ended well, by a signal or by its time limit."""
    if outcome.kind == FAILED and outcome.failures:
        first = outcome.failures[0]
        return FailedAttempt(first.rank, first.exit_code or None, first.step, first.exception)
    if outcome.kind == STUCK:
        stuck = next(worker for worker in outcome.workers if worker.rank == outcome.culprits[0])
        return FailedAttempt(stuck.rank, None, stuck.step, is_stuck=True)
    return None


def pause(seconds: float, signals: Signals) -> bool:
    """Waits before another start. Returns whether it may come: not when somebody has ended the run meanwhile."""
    end_s = time.monotonic() + seconds
    while not signals.received and (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_EVERY_S))
    return not signals.received
