"""The seats of the rendezvous: which agents are there, who may take a seat, and who is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trireme.agent import words
from trireme.agent.instructions import RendezvousInstruction, SendTo
from trireme.agent.messages import Join, Message, Refused, WorkerState
from trireme.agent.rules import Rules
from trireme.errors import EXIT_CONFIGURATION, EXIT_PEER_LOST


@dataclass
class Seat:
    """An agent that is there.

    Attributes:
        connection: where it can be spoken to.
        joined: how it introduced itself.
        heard_s: when it last said anything.
        addresses: where its next workers will listen; None while it is not ready for them.
        ranks: its workers in this generation.
        has_ended: whether they have, in this generation.
        states: where they were at `states_s`.
    """

    connection: int
    joined: Join
    heard_s: float
    addresses: tuple[str, ...] | None = None
    ranks: range = range(0)
    has_ended: bool = False
    states: tuple[WorkerState, ...] = ()
    states_s: float = 0.0

    @property
    def index(self) -> int:
        return self.joined.index

    @property
    def is_ready(self) -> bool:
        return self.addresses is not None

    @property
    def step(self) -> int | None:
        """The last step that all of its workers are known to have begun."""
        steps = [-1 if state.step is None else state.step for state in self.states]
        return min(steps) if steps and min(steps) >= 0 else None


class Seats:
    """One seat for each agent of the run, taken or not."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._taken: dict[int, Seat] = {}
        self._incarnations: dict[int, str] = {}
        self._replaced: set[str] = set()
        self._places = dict(enumerate(rules.places))
        self._why_absent: dict[int, str] = {}

    def __iter__(self) -> Iterator[Seat]:
        """Those that are taken, by index."""
        return iter([self._taken[index] for index in sorted(self._taken)])

    @property
    def are_all_ready(self) -> bool:
        """Whether every agent is there and can start its workers."""
        return len(self._taken) == self._rules.num_agents and all(seat.is_ready for seat in self)

    def get(self, index: int) -> Seat | None:
        return self._taken.get(index)

    def of_connection(self, connection: int) -> Seat | None:
        return next((seat for seat in self if seat.connection == connection), None)

    def refusal(self, join: Join) -> Refused | None:
        """Why an agent gets no seat, or None."""
        expected = self._rules.num_agents
        if join.run_id != self._rules.run_id:
            # A rendezvous that is about to leave this very address belongs to an earlier run, so try again.
            return Refused(f"it serves the run {self._rules.run_id!r}, and this is the run {join.run_id!r}")
        if join.num_agents != expected or join.index not in range(expected):
            reason = f"it expects {expected} agents, and this one is agent {join.index} of {join.num_agents}"
            return Refused(reason, is_final=True, exit_code=EXIT_CONFIGURATION)
        if join.incarnation in self._replaced:
            reason = f"another process has taken the place of agent {join.index}"
            return Refused(reason, is_final=True, exit_code=EXIT_PEER_LOST)
        seat = self.get(join.index)
        if seat is not None and seat.joined.incarnation != join.incarnation:
            return Refused(f"agent {join.index} is there already, at {seat.joined.place}")
        return None

    def take(self, connection: int, join: Join, now_s: float) -> None:
        """Seats an agent. Its earlier incarnation never gets the seat back."""
        earlier = self._incarnations.get(join.index, join.incarnation)
        if earlier != join.incarnation:
            self._replaced.add(earlier)
        self._incarnations[join.index] = join.incarnation
        self._places[join.index] = join.place
        self._taken[join.index] = Seat(connection, join, now_s)

    def leave(self, seat: Seat, reason: str) -> None:
        """Frees a seat; `reason` is for those who ask why nobody is there."""
        del self._taken[seat.index]
        self._why_absent[seat.index] = reason

    def absent(self) -> tuple[str, ...]:
        """Who is not there, each in words."""
        return tuple(
            words.absent(index, self._places.get(index, ""), self._why_absent.get(index, ""))
            for index in range(self._rules.num_agents)
            if index not in self._taken
        )

    def missing(self) -> tuple[str, ...]:
        """Who keeps the next generation waiting, each in words."""
        busy = [words.busy(seat.index, seat.joined.place) for seat in self if not seat.is_ready]
        return (*self.absent(), *busy)

    def to_all(self, message: Message) -> list[RendezvousInstruction]:
        return [SendTo(seat.connection, message) for seat in self]
