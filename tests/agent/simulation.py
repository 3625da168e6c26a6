"""Agents in memory: their state machines, a network whose cables can be cut, workers that are a word, one clock."""

from collections import deque
from dataclasses import dataclass, field

from trireme.agent.events import (
    Closed,
    Connected,
    Interrupted,
    Lost,
    Prepared,
    Received,
    ReceivedFrom,
    Tick,
    WorkersEnded,
)
from trireme.agent.instructions import (
    Connect,
    Disconnect,
    Drop,
    Exit,
    Prepare,
    Recall,
    Send,
    SendTo,
    StartWorkers,
    Tell,
)
from trireme.agent.member import Member
from trireme.agent.messages import Ending, WorkerState, decode, encode
from trireme.agent.rendezvous import Rendezvous
from trireme.agent.rules import Identity, Rules
from trireme.recovery.policy import FailedAttempt, RestartPolicy

STEP_S = 0.1


@dataclass
class Process:
    """An agent's process: its state machines, its workers' generation, its end of the cable."""

    index: int
    incarnation: str
    member: Member
    rendezvous: Rendezvous | None = None
    connection: int | None = None
    generation: int | None = None
    recalled_s: float | None = None
    states: tuple[WorkerState, ...] = ()
    exit_code: int | None = None
    gone_s: float = 0.0
    told: list[str] = field(default_factory=list)
    started: list[StartWorkers] = field(default_factory=list)


@dataclass
class Cable:
    """A connection between an agent and the rendezvous, with what is under way in both directions."""

    agent: Process
    server: Process
    to_agent: deque = field(default_factory=deque)
    to_server: deque = field(default_factory=deque)
    is_closed_by_agent: bool = False
    is_closed_by_server: bool = False


class Simulation:
    """Some agents. Call `run` to let time pass; everything in between happens at once."""

    def __init__(self, num_agents: int = 2, max_restarts: int = 3, **rules: object) -> None:
        self.now_s = 100.0
        self.rules = Rules(
            num_agents, run_id="run", restarts=RestartPolicy(max_restarts), **{"timeout_s": 60.0, **rules}
        )
        self.agents: dict[int, Process] = {}
        self.ended: list[Process] = []
        self.others: list[Process] = []
        self.cables: dict[int, Cable] = {}
        self.cut: set[int] = set()
        # How long the workers of an agent take to end when they are recalled.
        self.ending_s: dict[int, float] = {}
        self._last = 0
        for index in range(num_agents):
            self.start(index)

    def start(self, index: int, rules: Rules | None = None) -> Process:
        """A new process of an agent, in the place of the one before it."""
        self._last += 1
        identity = Identity(index, f"life {self._last}", f"host{index}", "host0:1", seed=self._last)
        rules = rules or self.rules
        process = Process(index, identity.incarnation, Member(identity, rules, self.now_s))
        if index == 0:
            process.rendezvous = Rendezvous(rules, self.now_s)
        self.agents[index] = process
        return process

    def kill(self, index: int) -> Process:
        """An agent's process is gone, and its workers with it; the kernel closes its connections."""
        process = self.agents.pop(index)
        self._gone(process)
        return process

    def take_away(self, index: int) -> Process:
        """A process leaves its place to another one, and lives on."""
        process = self.agents.pop(index)
        self.others.append(process)
        return process

    def _gone(self, process: Process) -> None:
        self.ended.append(process)
        if process in self.others:
            self.others.remove(process)
        for cable in list(self.cables.values()):
            if cable.agent is process:
                cable.is_closed_by_agent = True
            if cable.server is process:
                cable.is_closed_by_server = True

    def pull(self, index: int) -> None:
        """Nothing comes through an agent's cable any more, and nobody is told."""
        self.cut.add(index)

    def plug(self, index: int) -> None:
        self.cut.discard(index)

    def finish(self, index: int) -> None:
        """The workers of an agent end well."""
        self._end(self.agents[index], WorkersEnded())

    def fail(
        self, index: int, exit_code: int | None = 1, exception: str = "", step: int | None = None
    ) -> None:
        """The workers of an agent fail."""
        process = self.agents[index]
        first = process.started[-1].first_rank
        ending = Ending(FailedAttempt(first, exit_code, step, exception), f"worker {first} failed\n")
        self._end(process, WorkersEnded(ending, report=ending.report))

    def signal(self, index: int, exit_code: int = 143) -> None:
        """An agent is told to end."""
        process = self.agents[index]
        if process.generation is None:
            self.tell(process, Interrupted(exit_code))
        else:
            self._end(process, WorkersEnded(exit_code=exit_code))

    def run(self, seconds: float = 5.0, until: object = None) -> None:
        """Lets time pass, until something is true or that many seconds are over."""
        end_s = self.now_s + seconds
        while self.now_s < end_s and not (callable(until) and until()):
            self._turn()
            self.now_s += STEP_S

    def generations(self) -> list[int | None]:
        """The generation of each agent's workers, None where none run."""
        return [self.agents[index].generation for index in sorted(self.agents)]

    def exit_codes(self) -> dict[int, int | None]:
        """The exit code of the last process of each agent, None for one that was killed or lives."""
        processes = {process.index: process.exit_code for process in self.ended}
        return processes | {index: process.exit_code for index, process in self.agents.items()}

    def text_of(self, index: int) -> str:
        processes = [process for process in [*self.ended, *self.agents.values()] if process.index == index]
        return "".join(text for process in processes for text in process.told)

    def tell(self, process: Process, event: object) -> None:
        for instruction in process.member.handle(event, self.now_s):
            self._perform(process, instruction)

    def _turn(self) -> None:
        for number in list(self.cables):
            self._deliver(number)
        for process in [*self.agents.values(), *self.others]:
            if process.recalled_s is not None and self._have_ended(process):
                self._end(process, WorkersEnded(is_recalled=True))
            self.tell(process, Tick(process.states if process.generation is not None else ()))
            if process.rendezvous is not None:
                self._tell_rendezvous(process, Tick())
            is_needed = process.rendezvous is not None and process.rendezvous.is_needed
            if process.exit_code is not None and not (is_needed and self.now_s - process.gone_s < 10):
                if process in self.others:
                    self._gone(process)
                else:
                    self.kill(process.index)

    def _have_ended(self, process: Process) -> bool:
        return self.now_s - process.recalled_s >= self.ending_s.get(process.index, 0.0)

    def _deliver(self, number: int) -> None:
        cable = self.cables[number]
        if cable.agent.index in self.cut:
            return
        while cable.to_server:
            message = decode(encode(cable.to_server.popleft()))
            if not cable.is_closed_by_server:
                self._tell_rendezvous(cable.server, ReceivedFrom(number, message))
        while cable.to_agent:
            event = cable.to_agent.popleft()
            if cable.agent.connection == number and not cable.is_closed_by_agent:
                self.tell(cable.agent, event)
        if cable.is_closed_by_agent and not cable.is_closed_by_server:
            self._tell_rendezvous(cable.server, Closed(number, "it closed the connection"))
        if cable.is_closed_by_server and cable.agent.connection == number and not cable.is_closed_by_agent:
            cable.agent.connection = None
            self.tell(cable.agent, Lost("it closed the connection"))
        if cable.is_closed_by_agent or cable.is_closed_by_server:
            self.cables.pop(number, None)

    def _tell_rendezvous(self, process: Process, event: object) -> None:
        if self.agents.get(0) is not process or process.rendezvous is None:
            return
        for instruction in process.rendezvous.handle(event, self.now_s):
            match instruction:
                case SendTo(connection, message) if connection in self.cables:
                    self.cables[connection].to_agent.append(Received(decode(encode(message))))
                case Drop(connection) if connection in self.cables:
                    self.cables[connection].is_closed_by_server = True

    def _perform(self, process: Process, instruction: object) -> None:
        match instruction:
            case Connect():
                self._connect(process)
            case Disconnect() if process.connection in self.cables:
                self.cables[process.connection].is_closed_by_agent = True
                process.connection = None
            case Send(message) if process.connection in self.cables:
                self.cables[process.connection].to_server.append(message)
            case Prepare():
                self.tell(process, Prepared((f"host{process.index}:{len(process.started) + 1}",)))
            case StartWorkers() as start:
                assert process.generation is None, "workers start beside those of an earlier generation"
                process.started.append(start)
                process.generation = start.generation
            case Recall():
                process.recalled_s = self.now_s
            case Tell(text):
                process.told.append(text)
            case Exit(exit_code):
                process.exit_code, process.gone_s = exit_code, self.now_s

    def _connect(self, process: Process) -> None:
        self._last += 1
        server = self.agents.get(0)
        if server is None or {process.index, 0} & self.cut:
            self.tell(process, Lost("no answer"))
            return
        process.connection = self._last
        self.cables[self._last] = Cable(process, server)
        self.cables[self._last].to_agent.append(Connected())

    def _end(self, process: Process, event: WorkersEnded) -> None:
        process.generation, process.recalled_s, process.states = None, None, ()
        self.tell(process, event)
