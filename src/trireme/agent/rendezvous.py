"""What the agents of a run decide together: events in, instructions out, no sockets and no clock.

It lives in the agent of worker 0 and is lost with it. What matters of a run is in the `Record`, of which every
agent keeps a copy that it brings along when it joins: so the rendezvous of the next chief's agent knows it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from trireme.agent import words
from trireme.agent.blame import first_cause, settle_s
from trireme.agent.events import Closed, ReceivedFrom, RendezvousEvent, Tick
from trireme.agent.instructions import Drop, RendezvousInstruction, SendTo
from trireme.agent.messages import (
    Beat,
    Ended,
    Ending,
    Join,
    Leaving,
    Meet,
    Message,
    News,
    Ready,
    Start,
    Stop,
    Welcome,
)
from trireme.agent.record import Record
from trireme.agent.rules import Rules
from trireme.agent.seats import Seat, Seats
from trireme.agent.stuck import culprits
from trireme.errors import EXIT_PEER_LOST, EXIT_RESTART_BUDGET_USED_UP
from trireme.recovery import policy
from trireme.recovery.policy import NEVER_RETRIED, FailedAttempt, Restart

MEETING, RUNNING, FAILING, OVER = "meeting", "running", "failing", "over"

Instructions = list[RendezvousInstruction]


@dataclass
class Attempt:
    """A generation from its start to the verdict on it.

    Attributes:
        done: the agents whose workers all ended well.
        endings: how others failed, in the order in which it was told; who told it, if it was the agent itself.
        failed_s: when the first of them was told.
    """

    started_s: float = 0.0
    done: set[int] = field(default_factory=set)
    endings: list[tuple[Ending, int | None]] = field(default_factory=list)
    failed_s: float = 0.0


class Rendezvous:
    """The state machine. `now_s` is the time of its beginning, on the clock of all events."""

    def __init__(self, rules: Rules, now_s: float) -> None:
        self.rules = rules
        self.phase = MEETING
        self.record = Record(num_starts=rules.num_starts)
        self._seats = Seats(rules)
        self._attempt = Attempt()
        self._meeting_s = now_s
        self._verdict = Stop(0)

    @property
    def is_needed(self) -> bool:
        """Whether it still has something to tell: what its own agent says as it leaves, or that the run is over."""
        return self._seats.get(0) is not None or (self.phase == OVER and bool(list(self._seats)))

    def handle(self, event: RendezvousEvent, now_s: float) -> Instructions:
        """Everything to do because of `event`, in order."""
        match event:
            case Tick():
                return self._on_tick(now_s)
            case ReceivedFrom(connection, Join() as join):
                return self._on_join(connection, join, now_s)
        seat = self._seats.of_connection(event.connection)
        match event:
            case Closed(reason=reason):
                return [] if seat is None else self._lose(seat, reason, now_s)
            case ReceivedFrom(message=message) if seat is not None:
                seat.heard_s = now_s
                return self._on_message(seat, message, now_s)
        return [Drop(event.connection)]

    def _on_join(self, connection: int, join: Join, now_s: float) -> Instructions:
        refused = self._seats.refusal(join)
        if refused is not None:
            return [SendTo(connection, refused), Drop(connection)]
        instructions: Instructions = []
        before = self._seats.get(join.index)
        if before is not None:
            instructions += [Drop(before.connection), *self._lose(before, "it connected again", now_s)]
        self._seats.take(connection, join, now_s)
        instructions.append(SendTo(connection, Welcome(self._seats.absent())))
        if self.phase == OVER:
            return [*instructions, SendTo(connection, self._verdict)]
        if self.phase == MEETING:
            self._learn(join, now_s)
            instructions.append(SendTo(connection, Meet(self.record)))
        return instructions

    def _learn(self, join: Join, now_s: float) -> None:
        """Takes over what an agent knows of the run, if this rendezvous has not been there itself."""
        if join.record.is_newer_than(self.record):
            self.record = join.record
        if join.ending is not None and self.record.is_open and join.record == self.record:
            self._note(join.ending, join.index, now_s)

    def _on_message(self, seat: Seat, message: Message, now_s: float) -> Instructions:
        match message:
            case Beat(workers):
                seat.states, seat.states_s = workers, now_s
                return [SendTo(seat.connection, Beat())]
            case Ready(addresses) if self.phase == MEETING:
                seat.addresses = addresses
                return self._start_if_complete(now_s)
            case Ended(generation, ending) if self._is_on(generation):
                return self._on_ended(seat, ending, now_s)
            case Leaving(exit_code):
                return self._on_leaving(seat, exit_code, now_s)
        # Said before its sender could know that the generation is over.
        return []

    def _is_on(self, generation: int) -> bool:
        return self.phase in (RUNNING, FAILING) and generation == self.record.generation

    def _on_ended(self, seat: Seat, ending: Ending | None, now_s: float) -> Instructions:
        seat.has_ended = True
        if ending is not None:
            self._note(ending, seat.index, now_s)
        else:
            self._attempt.done.add(seat.index)
        if len(self._attempt.done) == self.rules.num_agents:
            self.phase, self._verdict = OVER, Stop(0)
            return self._seats.to_all(self._verdict)
        return self._conclude_if_settled(now_s)

    def _on_leaving(self, seat: Seat, exit_code: int, now_s: float) -> Instructions:
        self._seats.leave(seat, words.told_to_end(exit_code))
        instructions: Instructions = [Drop(seat.connection)]
        text = words.left(seat.index, seat.joined.place, exit_code)
        if self.phase in (RUNNING, FAILING) and seat.index not in self._attempt.done:
            attempt = FailedAttempt(seat.ranks.start, exit_code, self._last_step(seat))
            self._note(Ending(attempt, text), None, now_s)
            # Without delay: if this is the chief's agent, the others have to know before it is gone.
            return instructions + self._conclude(now_s)
        return instructions + self._seats.to_all(News(text))

    def _lose(self, seat: Seat, reason: str, now_s: float) -> Instructions:
        self._seats.leave(seat, reason)
        if self.phase in (RUNNING, FAILING) and not seat.has_ended:
            text = words.lost(seat.index, seat.joined.place, reason)
            attempt = FailedAttempt(seat.ranks.start, None, self._last_step(seat))
            self._note(Ending(attempt, text), None, now_s)
        return self._conclude_if_settled(now_s)

    def _last_step(self, seat: Seat) -> int | None:
        """How far the workers had come when an agent left: they all take the same steps."""
        steps = [one.step for one in (*self._seats, seat) if one.step is not None]
        return max(steps, default=None)

    def _note(self, ending: Ending, author: int | None, now_s: float) -> None:
        if not self._attempt.endings:
            self._attempt.failed_s = now_s
        self._attempt.endings.append((ending, author))
        if self.phase == RUNNING:
            self.phase = FAILING

    def _on_tick(self, now_s: float) -> Instructions:
        instructions: Instructions = []
        for seat in self._seats:
            silent_s = now_s - seat.heard_s
            if silent_s > self.rules.agent_silence_s:
                reason = f"it was silent for {silent_s:.1f} s"
                instructions += [Drop(seat.connection), *self._lose(seat, reason, now_s)]
        return instructions + {
            FAILING: self._conclude_if_settled,
            RUNNING: self._end_if_stuck,
            MEETING: self._start_if_complete,
            OVER: lambda _: [],
        }[self.phase](now_s)

    def _conclude_if_settled(self, now_s: float) -> Instructions:
        if self.phase != FAILING:
            return []
        is_somebody_busy = any(not seat.has_ended for seat in self._seats)
        patience_s = settle_s(ending for ending, _ in self._attempt.endings)
        if is_somebody_busy and now_s - self._attempt.failed_s < patience_s:
            return []
        return self._conclude(now_s)

    def _conclude(self, now_s: float) -> Instructions:
        """Says what follows from a generation that failed, and gathers the agents for the next one."""
        instructions = self._judge(now_s)
        if self.phase == OVER:
            return instructions
        self.phase = MEETING
        for seat in self._seats:
            seat.addresses = None
        return instructions + self._seats.to_all(Meet(self.record))

    def _judge(self, now_s: float) -> Instructions:
        """Decides about the failures of the last generation, and tells everybody."""
        endings = self._attempt.endings
        first = first_cause([ending for ending, _ in endings])
        author = next(author for ending, author in endings if ending is first)
        self._attempt = Attempt()
        decision = policy.decide(first.attempt, self.record.history, self.rules.restarts)
        self.record = self.record.ended(first.attempt)
        news = News(words.decided(decision, self.rules), author, first.report, first.attempt.is_stuck)
        if isinstance(decision, Restart):
            self._meeting_s = now_s + decision.after_s
            return self._seats.to_all(news)
        return [*self._seats.to_all(news), *self._stop(self._final(decision.exit_code), author)]

    def _final(self, exit_code: int) -> int:
        """The code of a run that is given up. Whoever else restarts things shall not begin it anew."""
        may_be_retried = exit_code not in NEVER_RETRIED
        return EXIT_RESTART_BUDGET_USED_UP if self.rules.is_last_word and may_be_retried else exit_code

    def _stop(self, exit_code: int, author: int | None) -> Instructions:
        """Ends the run: with this code where it failed, and elsewhere with that of a lost peer."""
        is_for_all = exit_code == EXIT_RESTART_BUDGET_USED_UP
        self.phase, self._verdict = OVER, Stop(exit_code if is_for_all else EXIT_PEER_LOST)
        return [
            SendTo(seat.connection, Stop(exit_code) if seat.index == author else self._verdict)
            for seat in self._seats
        ]

    def _start_if_complete(self, now_s: float) -> Instructions:
        """The next generation, if all are ready for it; the end of the run, if that takes too long."""
        if not self._seats.are_all_ready:
            is_too_late = now_s - self._meeting_s > self.rules.timeout_s
            return self._give_up() if is_too_late else []
        if self.record.is_open:
            # The chief's agent was lost in the last generation, and with it the rendezvous that saw it fail.
            steps = [seat.joined.step for seat in self._seats if seat.joined.step is not None]
            attempt = FailedAttempt(0, None, min(steps, default=None))
            self._note(Ending(attempt, words.chief_was_lost()), None, now_s)
            return self._judge(now_s)
        return self._start(now_s) if now_s >= self._meeting_s else []

    def _start(self, now_s: float) -> Instructions:
        seats = list(self._seats)
        addresses = [seat.addresses or () for seat in seats]
        ends = accumulate(map(len, addresses))
        for seat, end, own in zip(seats, ends, addresses, strict=True):
            seat.ranks, seat.has_ended, seat.states = range(end - len(own), end), False, ()
        workers = tuple(address for own in addresses for address in own)
        self.phase, self.record = RUNNING, self.record.started(seats[0].joined.seed)
        self._attempt = Attempt(started_s=now_s)
        return [SendTo(seat.connection, Start(self.record, workers, seat.ranks.start)) for seat in seats]

    def _give_up(self) -> Instructions:
        text = words.waited_in_vain(self.rules.timeout_s, self._seats.missing())
        return [*self._seats.to_all(News(text)), *self._stop(EXIT_PEER_LOST, None)]

    def _end_if_stuck(self, now_s: float) -> Instructions:
        stuck = culprits(self._seats, self.rules, self._attempt.started_s, now_s)
        if not stuck:
            return []
        attempt = FailedAttempt(stuck[0].rank, None, stuck[0].step, is_stuck=True)
        self._note(Ending(attempt, words.stuck(stuck, self.rules.worker_timeout_s)), None, now_s)
        return self._conclude(now_s)
