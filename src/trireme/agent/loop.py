"""The thread of an agent that talks to the others: it feeds the state machines and carries their instructions out.

It never waits for anything but the network, so an agent whose other thread is busy ending workers stays in touch.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from trireme.agent.events import (
    Closed,
    Connected,
    Lost,
    MemberEvent,
    Prepared,
    Received,
    ReceivedFrom,
    Tick,
)
from trireme.agent.instructions import (
    Connect,
    Disconnect,
    Drop,
    Exit,
    MemberInstruction,
    Prepare,
    Recall,
    RendezvousInstruction,
    Send,
    SendTo,
    StartWorkers,
    Tell,
)
from trireme.agent.member import Member
from trireme.agent.messages import WorkerState
from trireme.agent.ports import Ports
from trireme.agent.rendezvous import Rendezvous
from trireme.agent.transport import Arrived, Ended, Happening, Opened, Transport
from trireme.launch.decision import WorkerView
from trireme.launch.progress_line import Pace, Progress
from trireme.launch.supervisor import Overseer

_POLL_S = 0.1
# How long the chief's agent stays for agents that have not heard how the run ended.
_FAREWELL_S = 10.0
_PROGRESS_EVERY_S = 5.0


@dataclass(frozen=True)
class Work:
    """Workers to start: what to start, with which ports, and by whom they may be called off."""

    start: StartWorkers
    ports: Ports
    overseer: Overseer


@dataclass(frozen=True)
class Over:
    """The agent's end: its exit code, or the error that ended the loop."""

    exit_code: int
    error: BaseException | None = None


Order: TypeAlias = Work | Over


@dataclass
class Loop:
    """The loop of one agent.

    Args:
        member: what this agent decides.
        rendezvous: what all decide, if this is the chief's agent.
        transport: listens already, in the chief's agent.
        address: host and port of the rendezvous, as seen from here.
        prepare: gets ports for the next workers. It is told the host at which others can reach this machine.
        tell: tells people; must not block.
        tells_progress: whether it also tells every few seconds how far the workers are, for who reads a pod's log.

    Attributes:
        orders: what the main thread is to do.
    """

    member: Member
    rendezvous: Rendezvous | None
    transport: Transport
    address: tuple[str, int]
    prepare: Callable[[str], Ports]
    tell: Callable[[str], None]
    tells_progress: bool = False
    clock: Callable[[], float] = time.monotonic
    orders: queue.SimpleQueue[Order] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self._inbox: deque[MemberEvent] = deque()
        self._link: int | None = None
        self._ports: Ports | None = None
        self._overseer: Overseer | None = None
        self._exit_code: int | None = None
        self._gone_s = 0.0
        self._progress_s = 0.0
        self._pace = Pace()
        self._thread = threading.Thread(target=self._run, name="trireme-agent", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, event: MemberEvent) -> None:
        """Says what happened in the main thread."""
        self._inbox.append(event)
        self.transport.wake()

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._turn()
            self.transport.shut_down()
            self.orders.put(Over(self._exit_code or 0))
        except BaseException as error:
            # The main thread would wait for ever, with workers that nobody looks after.
            self.orders.put(Over(1, error))
            if self._overseer is not None:
                self._overseer.is_recalled = True

    def _is_over(self) -> bool:
        if self._exit_code is None:
            return False
        is_waited_for = not self.transport.is_flushed or (
            self.rendezvous is not None and self.rendezvous.is_needed
        )
        return not is_waited_for or self.clock() - self._gone_s > _FAREWELL_S

    def _turn(self) -> None:
        for happening in self.transport.poll(_POLL_S, self.clock()):
            self._on_happening(happening)
        while self._inbox:
            self._tell_member(self._inbox.popleft())
        self._tell_member(Tick(self._states()))
        if self.tells_progress:
            self._tell_progress()
        if self.rendezvous is not None:
            self._perform_all(self.rendezvous.handle(Tick(), self.clock()))

    def _on_happening(self, happening: Happening) -> None:
        is_link = happening.connection == self._link
        match happening:
            case Opened() if is_link:
                self._tell_member(Connected())
            case Arrived(message=message) if is_link:
                self._tell_member(Received(message))
            case Ended(reason=reason) if is_link:
                self._link = None
                self._tell_member(Lost(reason))
            case Arrived(connection, message) if self.rendezvous is not None:
                self._perform_all(self.rendezvous.handle(ReceivedFrom(connection, message), self.clock()))
            case Ended(connection, reason) if self.rendezvous is not None:
                self._perform_all(self.rendezvous.handle(Closed(connection, reason), self.clock()))

    def _tell_member(self, event: MemberEvent) -> None:
        for instruction in self.member.handle(event, self.clock()):
            self._perform(instruction)

    def _perform_all(self, instructions: list[RendezvousInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case SendTo(connection, message):
                    self.transport.send(connection, message)
                case Drop(connection):
                    self.transport.close(connection)

    def _perform(self, instruction: MemberInstruction) -> None:
        match instruction:
            case Connect():
                self._link = self.transport.connect(*self.address, self.clock())
            case Disconnect() if self._link is not None:
                self.transport.close(self._link)
                self._link = None
            case Send(message) if self._link is not None:
                self.transport.send(self._link, message)
            case Prepare() if self._link is not None:
                if self._ports is None:
                    self._ports = self.prepare(self.transport.local_host(self._link))
                self._inbox.append(Prepared(self._ports.addresses))
            case StartWorkers() if self._ports is not None:
                self._overseer = Overseer()
                self.orders.put(Work(instruction, self._ports, self._overseer))
                self._ports = None
            case Recall(with_stacks) if self._overseer is not None:
                self._overseer.wants_stacks = with_stacks
                self._overseer.is_recalled = True
            case Tell(text):
                self.tell(text)
            case Exit(exit_code):
                self._exit_code, self._gone_s = exit_code, self.clock()
                self._close_ports()

    def _tell_progress(self) -> None:
        """Tells every few seconds how far the first worker is."""
        now_s = self.clock()
        first = next((view for view in self._views() if view.is_alive), None)
        if first is None or now_s - self._progress_s < _PROGRESS_EVERY_S:
            return
        self._progress_s = now_s
        rows_per_s = self._pace.measure(first.step, first.rows_per_step, now_s)
        progress = Progress(self.member.record.generation, first.step, rows_per_s)
        self.tell(progress.to_line().decode())

    def _views(self) -> tuple[WorkerView, ...]:
        return self._overseer.views if self._overseer is not None else ()

    def _close_ports(self) -> None:
        if self._ports is not None:
            self._ports.close()
            self._ports = None

    def _states(self) -> tuple[WorkerState, ...]:
        """Where this agent's workers are, if it has any."""
        now_s = self.clock()
        return tuple(
            WorkerState(view.rank, view.step, view.state, max(0.0, now_s - view.since_s))
            for view in self._views()
            if view.is_alive
        )
