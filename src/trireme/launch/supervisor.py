"""Watches the workers of this machine until the run is over, and ends whatever is left of them."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from trireme.cluster.board import Board
from trireme.launch import guardian, linux
from trireme.launch.decision import (
    INTERRUPTED,
    STUCK,
    TIME_LIMIT,
    Forward,
    Outcome,
    Situation,
    WorkerView,
    decide,
)
from trireme.launch.failure_file import Failure
from trireme.launch.job import Job
from trireme.launch.orphans import Orphans
from trireme.launch.processes import WorkerProcess
from trireme.launch.signals import Signals

_LOOK_EVERY_S = 0.1
# What a worker that shall end may still do; it was not asked to finish its work.
END_GRACE_S = 3.0
_STACKS_WITHIN_S = 2.0
_STACKS_SETTLE_S = 0.1
_TIDY_UP_S = 1.0
_LOOK_AGAIN_S = 0.02


@dataclass
class Overseer:
    """Somebody above the launcher, perhaps in another thread, who sees the workers and may call them off.

    Attributes:
        on_first_step: called once, when every worker has begun a step.
        views: what is known of every worker.
        is_recalled: set it to end the workers; a failure that is seen by then is told nevertheless.
        wants_stacks: whether their stacks are to be told when they end.
    """

    on_first_step: Callable[[], None] | None = None
    views: tuple[WorkerView, ...] = ()
    is_recalled: bool = False
    wants_stacks: bool = False

    def show(self, views: tuple[WorkerView, ...]) -> None:
        """Takes a newer view."""
        self.views = views
        if self.on_first_step is not None and all(view.step is not None for view in views):
            self.on_first_step()
            self.on_first_step = None


def supervise(
    job: Job,
    workers: Sequence[WorkerProcess],
    board: Board,
    signals: Signals,
    orphans: Orphans,
    overseer: Overseer,
    server_failures: Callable[[], Sequence[Failure]] = tuple,
    revive: Callable[[], bool] = bool,
) -> Outcome:
    """Watches until the run is over. The workers may still live then: see `end`.

    `server_failures` tells which parameter servers have failed, `revive` starts failed workers again that may be.
    """
    started_s, failed_s, is_forwarded = time.monotonic(), None, False
    with _wake_up_at_ends(workers) as wait:
        while True:
            views = look(workers, board)
            if revive():
                continue
            now_s = time.monotonic()
            overseer.show(views)
            of_servers = tuple(server_failures())
            if failed_s is None and (of_servers or any(view.failure for view in views)):
                failed_s = now_s
            decision = decide(
                Situation(
                    workers=views,
                    now_s=now_s,
                    started_s=max(started_s, signals.resumed_s),
                    timeout_s=job.timeout_s,
                    grace_s=job.grace_s,
                    time_limit_s=job.time_limit_s,
                    failed_s=failed_s,
                    signals=tuple(signals.received),
                    signalled_s=signals.first_s,
                    is_forwarded=is_forwarded,
                    is_whole_run=job.is_whole_run,
                    is_recalled=overseer.is_recalled,
                    server_failures=of_servers,
                )
            )
            if isinstance(decision, Outcome):
                return decision
            if isinstance(decision, Forward):
                is_forwarded = True
                forward(workers, decision.signum)
            else:
                orphans.reap()
                wait(_LOOK_EVERY_S)


def look(workers: Sequence[WorkerProcess], board: Board) -> tuple[WorkerView, ...]:
    """What is known of every worker at this moment."""
    entries = {entry.rank: entry for entry in board.read()}
    return tuple(worker.view(entries[worker.rank]) for worker in workers)


def forward(workers: Sequence[WorkerProcess], signum: int) -> None:
    """Passes on a signal as the workers would have got it without a launcher."""
    for worker in workers:
        if signum == signal.SIGINT:
            # A terminal's Ctrl-C goes to all processes in the foreground, the workers' children among them.
            worker.send_to_group(signum)
        else:
            # Asked to end, a worker may still want its children, to save what they hold.
            worker.send(signum)


def needs_stacks(outcome: Outcome) -> bool:
    """Whether only the workers' stacks can tell what happened."""
    return outcome.kind in (STUCK, TIME_LIMIT) or bool(outcome.culprits)


def collect_stacks(workers: Sequence[WorkerProcess], stacks_paths: Sequence[str]) -> dict[int, str]:
    """The Python stacks of all workers that can still answer, by rank."""
    asked = {}
    for worker, path in zip(workers, stacks_paths, strict=True):
        # A worker that has not come to its first line would die of the signal.
        can_answer = linux.catches(worker.pid, signal.SIGUSR1) and not linux.is_stopped(worker.pid)
        if worker.exit_code is None and can_answer:
            worker.send(signal.SIGUSR1)
            asked[worker.rank] = path
    give_up = time.monotonic() + _STACKS_WITHIN_S
    answers = _read_all(asked)
    while time.monotonic() < give_up:
        time.sleep(_STACKS_SETTLE_S)
        newer = _read_all(asked)
        if newer == answers and all(answers.values()):
            break
        answers = newer
    return {rank: text for rank, text in answers.items() if text}


def end_grace_s(outcome: Outcome) -> float:
    """How long workers may take to end; none for those that were told to by the signal that ended the run."""
    return 0.0 if outcome.kind == INTERRUPTED else END_GRACE_S


def end(
    workers: Sequence[WorkerProcess],
    mark: str,
    orphans: Orphans,
    grace_s: float = END_GRACE_S,
) -> None:
    """Ends the workers and everything they have started, wherever it has moved to.

    Args:
        workers: those to ask first, then to kill.
        mark: what the environment of every process of the run carries.
        orphans: those of the run that are children of this process by now.
        grace_s: seconds between asking and killing.
    """
    living = [worker for worker in workers if worker.look_for_end() is None]
    for worker in living:
        worker.send_to_group(signal.SIGTERM)
        # One that is stopped would not hear it.
        worker.send_to_group(signal.SIGCONT)
    with _wake_up_at_ends(living) as wait:
        _wait_until(lambda: all(_has_ended(worker) for worker in living), grace_s, wait)
    for worker in workers:
        worker.send(signal.SIGKILL)
    # Some helpers of a worker outlive it for a moment to tidy up, as multiprocessing's resource tracker does.
    _wait_until(lambda: not set(guardian.processes_of(mark)) - _ids(workers), _TIDY_UP_S, time.sleep)
    for worker in workers:
        worker.send_to_group(signal.SIGKILL)
    guardian.kill_processes_of(mark)
    for worker in workers:
        worker.reap()
    orphans.kill()


def _wait_until(is_true: Callable[[], bool], within_s: float, wait: Callable[[float], None]) -> None:
    give_up = time.monotonic() + within_s
    while not is_true() and time.monotonic() < give_up:
        wait(_LOOK_AGAIN_S)


def _ids(workers: Sequence[WorkerProcess]) -> set[int]:
    return {worker.pid for worker in workers}


def _has_ended(worker: WorkerProcess) -> bool:
    return worker.look_for_end() is not None


@contextmanager
def _wake_up_at_ends(workers: Sequence[WorkerProcess]) -> Iterator[Callable[[float], None]]:
    """A function that waits some seconds, or until the next worker ends."""
    poll = select.poll()
    with ExitStack() as stack:
        for worker in workers:
            # One that somebody else has reaped is found missing at the next look.
            with suppress(ProcessLookupError):
                fd = os.pidfd_open(worker.pid)
                stack.callback(os.close, fd)
                poll.register(fd, select.POLLIN)

        def wait(seconds: float) -> None:
            for fd, _ in poll.poll(seconds * 1000):
                # It stays readable for ever, and has said what it had to say.
                poll.unregister(fd)

        yield wait


def _read_all(paths: dict[int, str]) -> dict[int, str]:
    return {rank: _read(path) for rank, path in paths.items()}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""
