"""The process of an agent: its main thread starts workers when the loop says so, and watches them."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from trireme.agent import words
from trireme.agent.events import Interrupted, MemberEvent, WorkersEnded
from trireme.agent.instructions import StartWorkers
from trireme.agent.loop import Loop, Order, Over, Work
from trireme.agent.member import Member
from trireme.agent.messages import Ending
from trireme.agent.ports import Ports
from trireme.agent.rendezvous import Rendezvous
from trireme.agent.settings import Settings
from trireme.agent.teller import Teller
from trireme.agent.transport import Transport
from trireme.cluster.cluster import Cluster
from trireme.launch import report
from trireme.launch.decision import INTERRUPTED, RECALLED
from trireme.launch.job import Job, new_id
from trireme.launch.local import Run, execute, forget_failures, make_log_dir, open_standard_descriptors
from trireme.launch.orphans import Orphans
from trireme.launch.output import Console
from trireme.launch.restarts import failed_attempt
from trireme.launch.signals import Signals

_LOOK_EVERY_S = 0.1
_SIGNALLED = 128
# Of what goes to the other agents: the headline and the traceback come first.
_MAX_REPORT_CHARACTERS = 32_000


def run(job: Job, settings: Settings) -> int:
    """Runs a job's workers as one agent of several, as this process' whole purpose. Returns the exit code.

    That is 0 when the workers of all agents ended well, 65 when the run was started again as often as it may
    be, 75 when only others failed, 128 + N after signal N, else that of the first failure here.

    Raises:
        ConfigurationError: the rendezvous cannot listen where the others expect it.
    """
    open_standard_descriptors()
    with Teller(_say) as teller:
        agent = Agent(job, settings, teller)
        return agent.run()


class Agent:
    """An agent's main thread."""

    def __init__(self, job: Job, settings: Settings, teller: Teller) -> None:
        self._job = job
        self._settings = settings
        self._teller = teller
        self._signals, self._orphans = Signals(), Orphans()
        self._ended_s: float | None = None
        self._is_leaving = False
        self._log_dir = ""
        now_s = time.monotonic()
        transport = Transport(settings.key)
        address, rendezvous = (settings.host, settings.port), None
        if settings.is_chiefs:
            rendezvous = Rendezvous(settings.rules, now_s)
            # The name by which others know this machine may lead elsewhere from here.
            address = ("127.0.0.1", transport.listen(settings.host, settings.port))
        self._loop = Loop(
            Member(settings.identity, settings.rules, now_s),
            rendezvous,
            transport,
            address,
            prepare=self._prepare,
            tell=teller.tell,
            tells_progress=settings.is_pod,
        )

    def run(self) -> int:
        """Starts workers until the loop says that it is over."""
        self._teller.tell(words.begins(self._settings.identity, self._settings.rules))
        with self._signals.taken_over(), self._orphans.adopted():
            self._loop.start()
            while isinstance(order := self._next_order(), Work):
                self._loop.put(self._work(order))
        if order.error is not None:
            raise order.error
        return order.exit_code

    def _next_order(self) -> Order:
        """Waits for what to do. A signal that comes meanwhile is passed on; at another one this is over."""
        received = self._signals.received
        num_known = len(received)
        while True:
            with suppress(queue.Empty):
                return self._loop.orders.get(timeout=_LOOK_EVERY_S)
            self._orphans.reap()
            if received and not self._is_leaving:
                self._is_leaving, num_known = True, len(received)
                self._loop.put(Interrupted(_SIGNALLED + received[0]))
            elif len(received) > num_known:
                return Over(_SIGNALLED + received[0])

    def _work(self, work: Work) -> MemberEvent:
        """Runs the workers of one generation to their end."""
        job = replace(
            self._job,
            cluster=self._cluster(work.start),
            seed=work.start.seed,
            generation=work.start.generation,
            launch_id=new_id(),
        )
        if self._log_dir:
            forget_failures(job, self._log_dir)
        else:
            # Which workers' output it will hold is known only now. Other machines may write to the same folder.
            self._log_dir = make_log_dir(job)
        self._teller.tell(words.starts(job.generation, job.ranks, len(work.start.workers), self._log_dir))
        if self._ended_s is not None:
            work.overseer.on_first_step = self._first_step_teller(self._ended_s)
        console = Console.of_descriptors()
        done = execute(
            job, self._log_dir, console, self._signals, self._orphans, work.overseer, work.ports.reserved
        )
        self._ended_s = time.monotonic()
        self._is_leaving = done.outcome.kind == INTERRUPTED
        return _event(done)

    def _first_step_teller(self, ended_s: float) -> Callable[[], None]:
        return lambda: self._teller.tell(report.first_step(time.monotonic() - ended_s))

    def _prepare(self, host: str) -> Ports:
        # The chief's agent reaches the rendezvous by loopback, where nobody else would find its workers.
        return Ports(self._settings.expected, self._settings.host if self._settings.is_chiefs else host)

    def _cluster(self, start: StartWorkers) -> Cluster:
        """The cluster of one generation, as the first worker here sees it."""
        run_id = self._settings.rules.run_id
        if self._job.cluster is not None:
            return replace(self._job.cluster, workers=start.workers, run_id=run_id)
        return Cluster(
            workers=start.workers,
            rank=start.first_rank,
            replicas_per_worker=self._job.replicas_per_worker,
            run_id=run_id,
            source="trireme",
        )


def _event(done: Run) -> WorkersEnded:
    """How the workers ended, for the state machine."""
    outcome = done.outcome
    told = ("\n" if done.is_line_open else "") + done.report + report.logs_are_in(done.log_dir)
    told = told if done.report else ""
    if outcome.kind == INTERRUPTED:
        return WorkersEnded(exit_code=outcome.exit_code, report=told)
    failed = failed_attempt(outcome)
    ending = None if failed is None else Ending(failed, done.report[:_MAX_REPORT_CHARACTERS])
    return WorkersEnded(ending, is_recalled=outcome.kind == RECALLED, report=told)


def _say(text: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
