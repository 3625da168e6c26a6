"""What follows a failure: another start from the newest backup, or the end of the run.

`decide` is a pure function of the failure, of those before it and of the policy. It looks at no process,
clock or file, so the launcher of one machine and the agents of several ask the same question and get the same
answer.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from trireme.errors import (
    EXIT_CONFIGURATION,
    EXIT_INTERRUPTED,
    EXIT_PEER_LOST,
    EXIT_RESTART_BUDGET_USED_UP,
    EXIT_TERMINATED,
    EXIT_USAGE,
    UsageError,
)

# Another start meets the same command line, the same environment or the same verdict.
NEVER_RETRIED = frozenset({EXIT_USAGE, EXIT_RESTART_BUDGET_USED_UP, EXIT_CONFIGURATION})
_SIGNALLED = 128


@dataclass(frozen=True)
class FailedAttempt:
    """How one attempt of the run failed: its first failure, without those that it dragged along.

    `exit_code` is what the worker ended with; killed by signal N it may be given as -N or as 128 + N and is
    kept as the latter. None stands for a worker that ended without one: it disappeared with its machine, or it
    `is_stuck` and the supervisor ended it. `step` counts over the whole run, None before the first one.
    `exception` is the type of the Python exception that ended the worker, empty where there was none.
    """

    rank: int
    exit_code: int | None
    step: int | None = None
    exception: str = ""
    is_stuck: bool = False

    def __post_init__(self) -> None:
        if self.exit_code == 0:
            raise UsageError(f"Rank {self.rank} ended with exit code 0, which is no failure to decide about.")
        if self.exit_code is not None and self.exit_code < 0:
            object.__setattr__(self, "exit_code", _SIGNALLED - self.exit_code)

    def __str__(self) -> str:
        place = "before its first step" if self.step is None else f"at step {self.step}"
        return f"rank {self.rank} {self._event()} {place}"

    def _event(self) -> str:
        if self.is_stuck:
            return "was stuck"
        if self.exit_code is None:
            return "disappeared"
        if self.exit_code == EXIT_TERMINATED:
            return "was preempted (SIGTERM)"
        if self.exit_code == EXIT_INTERRUPTED:
            return "was interrupted"
        if self.exit_code == EXIT_PEER_LOST:
            return f"lost a peer (exit code {EXIT_PEER_LOST})"
        if self.exception:
            return f"raised {self.exception} (exit code {self.exit_code})"
        name = _signal_name(self.exit_code - _SIGNALLED)
        return f"was killed by {name}" if name else f"ended with exit code {self.exit_code}"


@dataclass(frozen=True)
class RestartPolicy:
    """How often a run is started again, and how long it waits before.

    A run that got further than ever before is started again at once. Each failure in a row without progress
    waits longer: `first_delay_s`, then twice that, up to `longest_delay_s`. `max_restarts=0` never restarts,
    whatever happened.
    """

    max_restarts: int = 0
    first_delay_s: float = 1.0
    longest_delay_s: float = 60.0

    def __post_init__(self) -> None:
        wrong = []
        if self.max_restarts < 0:
            wrong.append(f"max_restarts={self.max_restarts} must be 0 or more")
        if self.first_delay_s < 0:
            wrong.append(f"first_delay_s={self.first_delay_s} must be 0 or more")
        if self.longest_delay_s < self.first_delay_s:
            wrong.append(f"longest_delay_s={self.longest_delay_s} must not be below first_delay_s")
        if wrong:
            raise UsageError("RestartPolicy: " + "; ".join(wrong) + ".")


@dataclass(frozen=True)
class Restart:
    """Start the whole group again from the newest backup, `after_s` seconds from now."""

    after_s: float
    reason: str
    is_counted: bool
    restarts_left: int


@dataclass(frozen=True)
class Stop:
    """End the run with `exit_code`."""

    reason: str
    exit_code: int


Decision = Restart | Stop


def decide(failed: FailedAttempt, history: Sequence[FailedAttempt], policy: RestartPolicy) -> Decision:
    """Return what to do after an attempt failed; `history` holds those before it, oldest first.

    It is asked about runs that failed. A run that was itself told to end, or that is over its time, just ends.
    """
    if failed.exit_code == EXIT_INTERRUPTED:
        return Stop(f"{failed}: somebody pressed Ctrl-C", EXIT_INTERRUPTED)
    if failed.exit_code in NEVER_RETRIED:
        return Stop(f"{failed}: another start would end the same way", _exit_code(failed))
    if policy.max_restarts == 0:
        return Stop(f"{failed}: no restarts were asked for (--max-restarts)", _exit_code(failed))
    if _repeats(failed, history):
        return Stop(f"{failed}, as it did before: a restart does not help", _exit_code(failed))
    return _within_budget(failed, history, policy)


def _within_budget(
    failed: FailedAttempt, history: Sequence[FailedAttempt], policy: RestartPolicy
) -> Decision:
    is_counted = _is_counted(failed, history)
    spent = sum(_is_counted(earlier, history[:index]) for index, earlier in enumerate(history))
    if is_counted and spent >= policy.max_restarts:
        reason = f"{failed}: all {policy.max_restarts} restarts are used up (--max-restarts)"
        return Stop(reason, EXIT_RESTART_BUDGET_USED_UP)
    left = policy.max_restarts - spent - is_counted
    return Restart(_delay_s(failed, history, policy), str(failed), is_counted, left)


def _is_counted(failed: FailedAttempt, earlier: Sequence[FailedAttempt]) -> bool:
    """A preempted worker did nothing wrong. Nor did one that lost a peer, but if that is all that ever happens
    and no step is gained by it, a budget must end it."""
    if failed.exit_code == EXIT_TERMINATED:
        return False
    if failed.exit_code == EXIT_PEER_LOST:
        return _failures_without_progress(failed, earlier) > 0
    return True


def _repeats(failed: FailedAttempt, history: Sequence[FailedAttempt]) -> bool:
    """Whether the user's code raised the same exception at the same step before.

    A lost peer also shows as an exception; it is an event of the cluster, not of the user's code.
    """
    if not failed.exception or failed.exit_code in (EXIT_TERMINATED, EXIT_PEER_LOST):
        return False
    return any((past.exception, past.step) == (failed.exception, failed.step) for past in history)


def _delay_s(failed: FailedAttempt, history: Sequence[FailedAttempt], policy: RestartPolicy) -> float:
    fruitless = _failures_without_progress(failed, history)
    if fruitless == 0:
        return 0.0
    # The exponent is bounded before the power is taken: a float overflows at 2**1024.
    return min(policy.first_delay_s * 2.0 ** min(fruitless - 1, 64), policy.longest_delay_s)


def _failures_without_progress(failed: FailedAttempt, history: Sequence[FailedAttempt]) -> int:
    """Return how many attempts in a row, `failed` the last of them, got no further than one before them."""
    fruitless, furthest = 0, -1
    for attempt in [*history, failed]:
        step = -1 if attempt.step is None else attempt.step
        fruitless = 0 if step > furthest else fruitless + 1
        furthest = max(furthest, step)
    return fruitless


def _exit_code(failed: FailedAttempt) -> int:
    if failed.exit_code is None:
        return 1 if failed.is_stuck else EXIT_PEER_LOST
    return failed.exit_code


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
