"""Runs a job on this machine, from its first process to its last."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from trireme.cluster.board import BOARD_FD, Board
from trireme.errors import EXIT_RESTART_BUDGET_USED_UP
from trireme.launch import guardian, report
from trireme.launch.decision import Outcome
from trireme.launch.job import Job, new_id
from trireme.launch.orphans import Orphans
from trireme.launch.output import Console
from trireme.launch.ports import ReservedPorts
from trireme.launch.processes import WorkerProcess, start
from trireme.launch.render import (
    SERVER,
    WORKER,
    Provisions,
    WorkerSpec,
    cluster_of,
    failure_file,
    launcher_mark,
    log_file,
    render,
    stacks_file,
)
from trireme.launch.restarts import Restarts, failed_attempt, pause
from trireme.launch.revival import Revival
from trireme.launch.servers import servers_of
from trireme.launch.supervisor import (
    END_GRACE_S,
    Overseer,
    Signals,
    collect_stacks,
    end,
    end_grace_s,
    needs_stacks,
    supervise,
)
from trireme.launch.variables import LAUNCHER, SHARED_MEMORY_FD
from trireme.recovery.policy import NEVER_RETRIED, RestartPolicy, Stop

_TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class Run:
    """How a job went.

    Attributes:
        outcome: how it ended.
        report: what to tell the user about it; empty when all went well.
        log_dir: the folder with each worker's output.
        is_line_open: whether the console shows a line without its end.
    """

    outcome: Outcome
    report: str
    log_dir: str
    is_line_open: bool = False


def run(job: Job, is_last_word: bool = False) -> int:
    """Runs a job as this process' whole purpose, with its terminal and its signals, restarts included.

    With `is_last_word` a run that is given up ends with 65, by which whatever started this process knows that it shall
    not start it again.

    Returns the exit code: 0 when every worker ended well, that of the first failure, 130 after Ctrl-C,
    128 + N after another signal N, 65 when all restarts are used up. What went wrong is written to standard
    error.
    """
    open_standard_descriptors()
    log_dir = make_log_dir(job)
    if job.num_workers + job.num_servers > 1:
        _say(report.started(job.num_workers, job.num_servers, log_dir))
    signals, orphans = Signals(), Orphans()
    with signals.taken_over(), orphans.adopted():
        exit_code, is_given_up = _run_until_over(job, log_dir, signals, orphans)
    if is_given_up and is_last_word and exit_code not in NEVER_RETRIED:
        return EXIT_RESTART_BUDGET_USED_UP
    return exit_code


def _run_until_over(job: Job, log_dir: str, signals: Signals, orphans: Orphans) -> tuple[int, bool]:
    """Its exit code, and whether it has failed for good."""
    restarts = Restarts(RestartPolicy(job.max_restarts))
    ended_s: float | None = None
    while True:
        tell = None if ended_s is None else _first_step_teller(ended_s)
        overseer = Overseer(on_first_step=tell)
        done = execute(job, log_dir, Console.of_descriptors(), signals, orphans, overseer)
        ended_s = time.monotonic()
        if done.report:
            _say(("\n" if done.is_line_open else "") + done.report + report.logs_are_in(log_dir))
        decision = restarts.after(done.outcome)
        if decision is None:
            return done.outcome.exit_code, failed_attempt(done.outcome) is not None
        if isinstance(decision, Stop):
            _say(report.given_up(decision))
            return decision.exit_code, True
        _say(report.restarting(decision, job.backup))
        if not pause(decision.after_s, signals):
            return 128 + signals.received[0], False
        job = replace(job, generation=job.generation + 1, launch_id=new_id())
        forget_failures(job, log_dir)


def _first_step_teller(ended_s: float) -> Callable[[], None]:
    return lambda: _say(report.first_step(time.monotonic() - ended_s))


def execute(
    job: Job,
    log_dir: str,
    console: Console | None,
    signals: Signals | None = None,
    orphans: Orphans | None = None,
    overseer: Overseer | None = None,
    ports: ReservedPorts | None = None,
) -> Run:
    """Starts a job's workers, watches them, ends what is left of them. Nothing of the run lives afterwards.

    Args:
        job: what to run.
        log_dir: an existing folder for the workers' output.
        console: where the first worker's output goes besides its log; None: nowhere.
        signals: those that this process receives for the workers.
        orphans: those of the run that this process adopts.
        overseer: who sees the workers meanwhile, and may call them off.
        ports: kept for the workers by the caller; closed when they have them.
    """
    signals, orphans, overseer = signals or Signals(), orphans or Orphans(), overseer or Overseer()
    mark = launcher_mark(job, os.getpid())
    num_workers = job.num_workers if job.cluster is None else job.cluster.num_workers
    workers: list[WorkerProcess] = []
    stacks: Mapping[int, str] = {}
    grace_s = END_GRACE_S
    with ExitStack() as stack:
        board = stack.enter_context(_board(num_workers))
        orphans.exclude(stack.enter_context(_guarded(mark, job.environ)))
        fds = stack.enter_context(_inherited(job, board))
        servers = stack.enter_context(servers_of(job))
        try:
            with ports or _own_ports(job) as kept:
                provisions = Provisions(log_dir, os.getpid(), fds, kept, servers.ports, servers.secrets)
                servers.start(provisions)
                for pid in servers.pids():
                    orphans.exclude(pid)
                specs = render(job, provisions)
                for spec in specs:
                    workers.append(_start(spec, job, provisions, console))
                    orphans.exclude(workers[-1].pid)
            _connect(signals, workers)
            revival = Revival(
                job.num_servers > 0, lambda: bool(signals.received) or overseer.is_recalled, _say
            )

            def start_again(worker: WorkerProcess) -> WorkerProcess:
                started = _start(specs[worker.rank - job.ranks.start], job, provisions, console)
                orphans.exclude(started.pid)
                return started

            outcome = supervise(
                job,
                workers,
                board,
                signals,
                orphans,
                overseer,
                lambda: servers.failures(revival),
                lambda: revival.revive(workers, start_again),
            )
            grace_s = end_grace_s(outcome)
            if needs_stacks(outcome) or overseer.wants_stacks:
                stacks = collect_stacks(workers, [stacks_file(log_dir, worker.rank) for worker in workers])
        finally:
            servers.end()
            end(workers, mark, orphans, grace_s)
    copyings = [worker.copying for worker in workers if worker.copying]
    for copying in copyings:
        copying.finish()
    for failure in outcome.failures:
        _append(log_file(log_dir, failure.rank, failure.role), failure.traceback)
    logs = {worker.rank: _tail(log_file(log_dir, worker.rank)) for worker in workers}
    text = report.ended(outcome, num_workers, job.timeout_s, stacks, logs, job.time_limit_s)
    return Run(outcome, text, log_dir, not all(copying.is_at_line_start for copying in copyings))


def make_log_dir(job: Job) -> str:
    """The folder for the workers' output, made if necessary, without what an earlier run left in it.

    What earlier generations of the same run have written there stays.
    """
    if job.log_dir is None:
        return tempfile.mkdtemp(prefix="trireme-")
    log_dir = os.path.abspath(job.log_dir)
    os.makedirs(log_dir, exist_ok=True)
    for rank, role in _processes(job) if job.generation == 0 else ():
        with suppress(FileNotFoundError):
            os.remove(log_file(log_dir, rank, role))
    forget_failures(job, log_dir)
    return log_dir


def forget_failures(job: Job, log_dir: str) -> None:
    """Removes what the processes of an earlier start have left of their failures."""
    for rank, role in _processes(job):
        for path in (failure_file(log_dir, rank, role), stacks_file(log_dir, rank, role)):
            with suppress(FileNotFoundError):
                os.remove(path)


def _processes(job: Job) -> list[tuple[int, str]]:
    return [(rank, WORKER) for rank in job.ranks] + [(rank, SERVER) for rank in range(job.num_servers)]


def _start(spec: WorkerSpec, job: Job, provisions: Provisions, console: Console | None) -> WorkerProcess:
    path = log_file(provisions.log_dir, spec.rank)
    _append(path, f"trireme: {cluster_of(job, provisions, spec.rank)!r}\n")
    return start(spec, path, console if spec.rank == job.ranks.start else None)


def _connect(signals: Signals, workers: list[WorkerProcess]) -> None:
    """Lets the launcher's suspension and its terminal's size reach the workers."""

    def send_to_all(signum: int) -> None:
        for worker in workers:
            worker.send_to_group(signum)

    def resize() -> None:
        for worker in workers:
            if worker.copying is not None:
                worker.copying.resize()

    signals.on_suspend = lambda: send_to_all(signal.SIGSTOP)
    signals.on_resume = lambda: send_to_all(signal.SIGCONT)
    signals.on_resize = resize


@contextmanager
def _board(num_workers: int) -> Iterator[Board]:
    board = Board.create(num_workers)
    try:
        yield board
    finally:
        board.close()
        os.close(board.fd)


@contextmanager
def _inherited(job: Job, board: Board) -> Iterator[dict[str, int]]:
    """The descriptors that workers inherit, by the variable that tells them."""
    fds = {BOARD_FD: board.fd}
    if job.is_whole_run and job.num_workers > 1 and not job.num_servers:
        fds[SHARED_MEMORY_FD] = os.memfd_create("trireme-shared-memory", os.MFD_CLOEXEC)
    try:
        yield fds
    finally:
        for name, fd in fds.items():
            if name != BOARD_FD:
                os.close(fd)


def _own_ports(job: Job) -> ReservedPorts:
    """A port for each of several workers, where nobody else has told them theirs."""
    return ReservedPorts(job.num_workers if job.cluster is None and job.num_workers > 1 else 0)


@contextmanager
def _guarded(mark: str, environ: Mapping[str, str]) -> Iterator[int]:
    """Has a process of its own end the run if this one is killed. Gives that process' id."""
    # Without the mark of an outer launcher, which would end this guardian together with what it guards.
    environ = {name: value for name, value in environ.items() if name != LAUNCHER}
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, mark],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process.pid
    except BaseException:
        # Whatever broke off the run, a second Ctrl-C perhaps, may have broken off its end as well.
        process.communicate(b"")
        raise
    process.communicate(guardian.DISMISSED)


def _append(path: str, text: str) -> None:
    # The user may have removed the folder, the disk may be full: neither changes how the run went.
    with suppress(OSError), open(path, "a", encoding="utf-8", errors="replace") as log:
        log.write(text)


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


def open_standard_descriptors() -> None:
    """Opens those that are closed: their numbers would go to our own files, and those to the workers' output."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _say(text: str) -> None:
    if sys.stderr is None:
        return
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()
