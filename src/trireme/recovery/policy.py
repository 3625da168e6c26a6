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
# -15 is a worker that was told to stop before it could install a handler that saves.
PREEMPTED = frozenset({EXIT_TERMINATED, -signal.SIGTERM})
INTERRUPTED = frozenset({EXIT_INTERRUPTED, -signal.SIGINT})


@dataclass(frozen=True)
class Failure:
    """The first failure of one attempt of the run; what it dragged along is not reported.

    `exit_code` is what `subprocess.Popen.returncode` says (negative: killed by that signal), None for a
    worker that ended without one: it disappeared with its machine, or it was `stuck` and the supervisor ended
    it. `step` counts over the whole run, None before the first step. `exception` is the type of the Python
    exception that ended the worker ("ValueError"), None where there was none.
    """

    rank: int
    exit_code: int | None
    step: int | None = None
    exception: str | None = None
    is_stuck: bool = False

    def __post_init__(self) -> None:
        if self.exit_code == 0:
            raise UsageError(f"Rank {self.rank} ended with exit code 0, which is no failure to decide about.")

    def __str__(self) -> str:
        return f"rank {self.rank} {self._event()} {_place(self.step)}"

    def _event(self) -> str:
        if self.is_stuck:
            return "was stuck"
        if self.exit_code is None:
            return "disappeared"
        if self.exit_code in PREEMPTED:
            return "was preempted (SIGTERM)"
        if self.exit_code in INTERRUPTED:
            return "was interrupted"
        if self.exit_code < 0:
            return f"was killed by {_signal_name(-self.exit_code)}"
        if self.exit_code == EXIT_PEER_LOST:
            return f"lost a peer (exit code {EXIT_PEER_LOST})"
        raised = f"raised {self.exception}" if self.exception else "ended"
        return f"{raised} (exit code {self.exit_code})"


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


def decide(failure: Failure, history: Sequence[Failure], policy: RestartPolicy) -> Decision:
    """Return what to do after `failure`; `history` holds the earlier failures of the same run, oldest
    first."""
    if failure.exit_code in INTERRUPTED:
        return Stop(f"{failure}: somebody pressed Ctrl-C", EXIT_INTERRUPTED)
    if failure.exit_code in NEVER_RETRIED:
        return Stop(f"{failure}: another start would end the same way", _exit_code(failure))
    if policy.max_restarts == 0:
        return Stop(f"{failure}: no restarts were asked for (--max-restarts)", _exit_code(failure))
    if _repeats(failure, history):
        return Stop(f"{failure}, as it did before: a restart does not help", _exit_code(failure))
    return _within_budget(failure, history, policy)


def _within_budget(failure: Failure, history: Sequence[Failure], policy: RestartPolicy) -> Decision:
    is_counted = _is_counted(failure, history)
    spent = sum(_is_counted(earlier, history[:index]) for index, earlier in enumerate(history))
    if is_counted and spent >= policy.max_restarts:
        reason = f"{failure}: all {policy.max_restarts} restarts are used up (--max-restarts)"
        return Stop(reason, EXIT_RESTART_BUDGET_USED_UP)
    left = policy.max_restarts - spent - is_counted
    return Restart(_delay_s(failure, history, policy), str(failure), is_counted, left)


def _is_counted(failure: Failure, earlier: Sequence[Failure]) -> bool:
    """A preempted worker did nothing wrong. Nor did one that lost a peer, but if that is all that ever
    happens and no step is gained by it, a budget must end it."""
    if failure.exit_code in PREEMPTED:
        return False
    if failure.exit_code == EXIT_PEER_LOST:
        return _failures_without_progress(failure, earlier) > 0
    return True


def _repeats(failure: Failure, history: Sequence[Failure]) -> bool:
    """Whether the user's code raised the same exception at the same step before.

    A lost peer also shows as an exception; it is an event of the cluster, not of the user's code.
    """
    if failure.exception is None or failure.exit_code in PREEMPTED | {EXIT_PEER_LOST}:
        return False
    return any((past.exception, past.step) == (failure.exception, failure.step) for past in history)


def _delay_s(failure: Failure, history: Sequence[Failure], policy: RestartPolicy) -> float:
    fruitless = _failures_without_progress(failure, history)
    if fruitless == 0:
        return 0.0
    # The exponent is bounded before the power is taken: a float overflows at 2**1024.
    return min(policy.first_delay_s * 2.0 ** min(fruitless - 1, 64), policy.longest_delay_s)


def _failures_without_progress(failure: Failure, history: Sequence[Failure]) -> int:
    """Return how many failures in a row, `failure` the last of them, got no further than an attempt before
    them."""
    fruitless, furthest = 0, -1
    for attempt in [*history, failure]:
        step = -1 if attempt.step is None else attempt.step
        fruitless = 0 if step > furthest else fruitless + 1
        furthest = max(furthest, step)
    return fruitless


def _exit_code(failure: Failure) -> int:
    """Return what a shell would report for the worker, the exit code of a run that is not started again."""
    if failure.exit_code is None:
        return 1 if failure.is_stuck else EXIT_PEER_LOST
    return failure.exit_code if failure.exit_code > 0 else 128 - failure.exit_code


def _place(step: int | None) -> str:
    return "before its first step" if step is None else f"at step {step}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
