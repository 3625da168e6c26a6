"""What to do about a run, as a pure function of what is known of it; `supervisor.py` does it."""

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from trireme.cluster.board import STARTING, WAITING
from trireme.errors import EXIT_INTERRUPTED, EXIT_PEER_LOST
from trireme.launch.failure_file import Failure
from trireme.recovery.policy import FailedAttempt

DONE, FAILED, STUCK, TIME_LIMIT, INTERRUPTED = "done", "failed", "stuck", "time limit", "interrupted"
RECALLED = "recalled"

EXIT_STUCK = 1
_SIGABRT_CODE = 128 + 6

# A peer's "connection reset" can be told before the failure that caused it.
SETTLE_S = 0.5
# Whose failures are all of that kind has a first failure still to come, or a peer that fell silent.
SETTLE_FOR_A_CAUSE_S = 3.0
# The run is ended before the workers' own deadlines, which know less about each other.
STUCK_SHARE_OF_TIMEOUT = 0.75


@dataclass(frozen=True)
class WorkerView:
    """What is known of one worker at one moment.

    Attributes:
        exit_code: None while it lives; minus N when signal N killed it.
        failure: how it failed, or None; a living worker may have said already that it failed.
        stopped_s: since when a signal such as SIGSTOP holds it, or None.
        step: the last step it began, or None.
        state: its last word on the progress board.
        since_s: since when it is in that state and step, on the clock of `Situation.now_s` like all times.
        rows_per_step: the rows of one step over all replicas, or None where that is not known.
    """

    rank: int
    pid: int = 0
    exit_code: int | None = None
    failure: Failure | None = None
    stopped_s: float | None = None
    step: int | None = None
    state: str = STARTING
    since_s: float = 0.0
    rows_per_step: int | None = None

    @property
    def is_alive(self) -> bool:
        return self.exit_code is None

    @property
    def is_stopped(self) -> bool:
        return self.stopped_s is not None


@dataclass(frozen=True)
class Situation:
    """A run at one moment. All times are on one clock.

    Attributes:
        now_s: this moment.
        started_s: when the run began, or went on after it was suspended.
        failed_s: when the first failure was seen, or None.
        signals: what the launcher received, in order.
        signalled_s: when the first of them came, or None.
        is_forwarded: whether the workers have been sent the first signal.
        is_whole_run: whether all workers of the run are in view.
        is_recalled: whether somebody who sees more has called the workers off.
        server_failures: how parameter servers of this machine failed.
    """

    workers: Sequence[WorkerView]
    now_s: float
    started_s: float
    timeout_s: float
    grace_s: float
    time_limit_s: float | None = None
    failed_s: float | None = None
    signals: Sequence[int] = ()
    signalled_s: float | None = None
    is_forwarded: bool = False
    is_whole_run: bool = True
    is_recalled: bool = False
    server_failures: Sequence[Failure] = ()


@dataclass(frozen=True)
class Wait:
    """Look again later."""


@dataclass(frozen=True)
class Forward:
    """Send every worker this signal."""

    signum: int


@dataclass(frozen=True)
class Outcome:
    """The run is over; whatever still lives is to be ended.

    Attributes:
        kind: `"done"`, `"failed"`, `"stuck"`, `"time limit"`, `"interrupted"` or `"recalled"`.
        exit_code: what the launcher ends with.
        workers: what was known of every worker.
        failures: the failures, the one that explains the others first.
        culprits: the ranks for which the others waited in vain.
        signum: the signal that interrupted the run.
    """

    kind: str
    exit_code: int
    workers: tuple[WorkerView, ...] = field(default=(), repr=False)
    failures: tuple[Failure, ...] = ()
    culprits: tuple[int, ...] = ()
    signum: int | None = None


def decide(situation: Situation) -> Wait | Forward | Outcome:
    """What to do next."""
    living = [worker for worker in situation.workers if worker.is_alive]
    if situation.signals:
        return _when_interrupted(situation, living)
    if situation.server_failures or any(worker.failure for worker in situation.workers):
        return _when_failed(situation, living)
    if not living:
        return _over(situation, DONE, 0)
    if situation.is_recalled:
        return _over(situation, RECALLED, EXIT_PEER_LOST)
    culprits = stuck_workers(situation)
    if culprits:
        return _over(situation, STUCK, EXIT_STUCK, culprits=culprits)
    limit = situation.time_limit_s
    if limit is not None and situation.now_s - situation.started_s > limit:
        return _over(situation, TIME_LIMIT, EXIT_STUCK, culprits=_ranks(living))
    return Wait()


def rank_failures(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """The failures with the one that explains the others first.

    A worker that only lost a peer (exit code 75) explains nothing; nor does one that its own runtime
    aborted without a word, which is how some runtimes answer the loss of a peer. One that was killed had
    no time to say so, so the exceptions of the others come after it. Else the earliest.
    """
    return tuple(sorted(failures, key=_order))


def stuck_workers(situation: Situation) -> tuple[int, ...]:
    """The ranks for which others have waited too long; none while somebody may still be about to come."""
    living = [worker for worker in situation.workers if worker.is_alive]
    waiting = [worker for worker in living if worker.state == WAITING]
    frozen = [worker for worker in living if worker.is_stopped and _is_over(worker.stopped_s, situation)]
    if frozen and len(situation.workers) > 1:
        # Nobody needs to say that he waits for it: sooner or later all do.
        return _ranks(frozen)
    patient = [worker for worker in waiting if not _is_over(worker.since_s, situation)]
    if not waiting or len(patient) == len(waiting):
        return ()
    stopped = [worker for worker in living if worker.is_stopped]
    if stopped:
        return _ranks(stopped)
    absent = [worker for worker in living if worker.state != WAITING]
    if absent:
        return _ranks(absent)
    if patient:
        return ()
    return _missing_at_the_meeting(situation, waiting)


def _missing_at_the_meeting(situation: Situation, waiting: Sequence[WorkerView]) -> tuple[int, ...]:
    """Who is to blame when all living workers wait: those that have left, those that are behind, or all."""
    gone = [worker for worker in situation.workers if not worker.is_alive]
    if gone:
        return _ranks(gone)
    if not situation.is_whole_run:
        # The missing one is on another machine, and the workers' own deadline will say so.
        return ()
    newest = max(_step(worker) for worker in waiting)
    behind = [worker for worker in waiting if _step(worker) < newest]
    return _ranks(behind or waiting)


def _when_interrupted(situation: Situation, living: Sequence[WorkerView]) -> Wait | Forward | Outcome:
    signum = situation.signals[0]
    is_patience_over = (
        situation.signalled_s is not None and situation.now_s - situation.signalled_s > situation.grace_s
    )
    # Whoever manages jobs may say twice that they shall end; that must not cost what the first time saves.
    is_impatient = any(later != signal.SIGTERM for later in situation.signals[1:])
    if not living or is_impatient or is_patience_over:
        own = [worker.failure for worker in situation.workers if _is_own(worker.failure, signum)]
        failures = rank_failures(failure for failure in own if failure)
        return _over(situation, INTERRUPTED, 128 + signum, failures=failures, signum=signum)
    return Wait() if situation.is_forwarded else Forward(signum)


def _when_failed(situation: Situation, living: Sequence[WorkerView]) -> Wait | Outcome:
    failures = [worker.failure for worker in situation.workers if worker.failure]
    failures += situation.server_failures
    silent = [worker for worker in living if not worker.failure]
    has_cause = any(distance_from_cause(failure) == 0 for failure in failures)
    settle_s = SETTLE_S if has_cause else SETTLE_FOR_A_CAUSE_S
    failed_s = situation.now_s if situation.failed_s is None else situation.failed_s
    if silent and not situation.is_recalled and situation.now_s - failed_s < settle_s:
        return Wait()
    ranked = rank_failures(failures)
    culprits = () if has_cause or situation.is_recalled else _silent_culprits(silent)
    return _over(situation, FAILED, ranked[0].exit_code or 1, failures=ranked, culprits=culprits)


def _silent_culprits(silent: Sequence[WorkerView]) -> tuple[int, ...]:
    """Those who have not failed themselves but can be why the others lost a peer."""
    stopped = [worker for worker in silent if worker.is_stopped]
    return _ranks(stopped or [worker for worker in silent if worker.state != WAITING])


def _is_own(failure: Failure | None, signum: int) -> bool:
    """Whether the worker failed of something else than the interruption."""
    return failure is not None and failure.exit_code != 128 + signum and distance_from_cause(failure) == 0


def _order(failure: Failure) -> tuple[int, bool, float]:
    was_killed = not failure.exception and failure.exit_code > 128
    return distance_from_cause(failure), not was_killed, failure.when


def distance_from_cause(failure: Failure | FailedAttempt) -> int:
    """How far a failure is from being what began it all; 0 when it can be that."""
    if failure.exit_code == EXIT_PEER_LOST:
        return 2
    if not failure.exception and failure.exit_code == _SIGABRT_CODE:
        return 1
    # Being interrupted is no failure of the worker's own, when it has one to show beside it.
    return 1 if failure.exit_code == EXIT_INTERRUPTED else 0


def _over(situation: Situation, kind: str, exit_code: int, **details: object) -> Outcome:
    return replace(Outcome(kind, exit_code, tuple(situation.workers)), **details)  # type: ignore[arg-type]


def _is_over(since_s: float | None, situation: Situation) -> bool:
    """Whether what began then has taken longer than anybody may keep the others waiting."""
    # While the whole run was suspended nobody waited.
    began_s = max(since_s or 0.0, situation.started_s)
    return situation.now_s - began_s > situation.timeout_s * STUCK_SHARE_OF_TIMEOUT


def _ranks(workers: Iterable[WorkerView]) -> tuple[int, ...]:
    return tuple(worker.rank for worker in workers)


def _step(worker: WorkerView) -> int:
    return -1 if worker.step is None else worker.step
