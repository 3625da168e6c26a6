"""What one agent decides: events in, instructions out, no sockets, no processes and no clock.

Two things happen to it independently: its link to the rendezvous comes and goes, and its workers run or do not.
The rule between them: without the link no workers run, since nobody could tell them that the others are gone.
"""

from __future__ import annotations

from trireme.agent import words
from trireme.agent.events import (
    Connected,
    Interrupted,
    Lost,
    MemberEvent,
    Prepared,
    Received,
    Tick,
    WorkersEnded,
)
from trireme.agent.instructions import (
    Connect,
    Disconnect,
    Exit,
    MemberInstruction,
    Prepare,
    Recall,
    Send,
    StartWorkers,
    Tell,
)
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
    Refused,
    Start,
    Stop,
    Welcome,
    WorkerState,
)
from trireme.agent.record import Record
from trireme.agent.rules import Identity, Rules
from trireme.errors import EXIT_PEER_LOST
from trireme.launch.decision import distance_from_cause

APART, CONNECTING, JOINING, SEATED = "apart", "connecting", "joining", "seated"
NONE, RUNNING, RECALLED, DONE = "none", "running", "recalled", "done"

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 2.0

Instructions = list[MemberInstruction]


class Member:
    """The state machine. `now_s` is the time of its beginning, on the clock of all events."""

    def __init__(self, identity: Identity, rules: Rules, now_s: float) -> None:
        self.identity = identity
        self.rules = rules
        self.link = APART
        self.workers = NONE
        self.record = Record(num_starts=rules.num_starts)
        self._is_meeting = False
        self._wants_stacks = False
        self._ending: Ending | None = None
        self._untold = ""
        self._states: tuple[WorkerState, ...] = ()
        self._has_told_step = False
        self._exit_code: int | None = None
        self._is_over = False
        # Of the link.
        self._apart_s = now_s
        self._why_apart = "it has not answered yet"
        self._delay_s = 0.0
        self._next_try_s = now_s
        self._heard_s = now_s
        self._beat_s = now_s

    def handle(self, event: MemberEvent, now_s: float) -> Instructions:
        """Everything to do because of `event`, in order; nothing any more after an `Exit`."""
        if self._is_over:
            return []
        instructions = self._on(event, now_s)
        if self._exit_code is not None and self.workers in (NONE, DONE):
            self._is_over = True
            instructions += [*self._tell_what_is_untold(), Disconnect(), Exit(self._exit_code)]
        return instructions

    def _on(self, event: MemberEvent, now_s: float) -> Instructions:
        match event:
            case Tick(workers):
                self._states = workers or self._states
                return self._on_tick(workers, now_s)
            case Connected():
                self.link, self._heard_s = JOINING, now_s
                return [Send(self._join())]
            case Lost(reason):
                return self._on_lost(reason, now_s)
            case Received(message):
                self._heard_s = now_s
                return self._on_message(message, now_s)
            case Prepared(addresses):
                return [Send(Ready(addresses))] if self._is_meeting else []
            case WorkersEnded():
                return self._on_workers_ended(event)
            case Interrupted(exit_code):
                return self._leave(exit_code)

    def _join(self) -> Join:
        steps = [-1 if state.step is None else state.step for state in self._states]
        return Join(
            run_id=self.rules.run_id,
            index=self.identity.index,
            num_agents=self.rules.num_agents,
            incarnation=self.identity.incarnation,
            place=self.identity.place,
            seed=self.identity.seed,
            record=self.record,
            step=min(steps) if steps and min(steps) >= 0 else None,
            ending=self._ending,
        )

    def _on_message(self, message: Message, now_s: float) -> Instructions:
        match message:
            case Welcome(missing):
                self.link, self._beat_s, self._delay_s = SEATED, now_s, 0.0
                return [Tell(words.waiting_for(missing))] if missing else []
            case Refused(reason, is_final, exit_code):
                return self._on_refused(reason, is_final, exit_code, now_s)
            case Meet(record):
                self.record, self._is_meeting = record, True
                return self._make_way()
            case Start(record, workers, first_rank):
                self.record, self._is_meeting = record, False
                self._ending, self._states, self._wants_stacks = None, (), False
                self._has_told_step = False
                self.workers = RUNNING
                return [StartWorkers(record.generation, record.seed or 0, workers, first_rank)]
            case News(text, author, report, wants_stacks):
                self._wants_stacks = wants_stacks
                return self._pass_on(text, author, report)
            case Stop(exit_code):
                self._exit_code = exit_code
                return self._recall()
        return []

    def _on_refused(self, reason: str, is_final: bool, exit_code: int, now_s: float) -> Instructions:
        if is_final:
            self._exit_code = exit_code
            return [Tell(words.refused(self.identity.rendezvous, reason)), *self._recall()]
        return [*self._not_there(reason), Disconnect(), *self._go_apart(reason, now_s)]

    def _not_there(self, reason: str) -> Instructions:
        """Says why it is still not at the rendezvous, when that is another reason than the last time."""
        is_news = reason != self._why_apart
        return [Tell(words.not_there_yet(self.identity.rendezvous, reason))] if is_news else []

    def _on_lost(self, reason: str, now_s: float) -> Instructions:
        if self.link != SEATED:
            told = [Tell(words.not_there_yet(self.identity.rendezvous, reason))] * (reason != self._why_apart)
            return [*told, *self._go_apart(reason, now_s)]
        instructions = [
            *self._go_apart(reason, now_s),
            Tell(words.link_lost(self.identity.rendezvous, reason)),
            *self._recall(),
        ]
        if self.record.is_open and self.rules.restarts.max_restarts == 0:
            # Nobody would start the workers again.
            self._exit_code = self._own_exit_code()
        return instructions

    def _go_apart(self, reason: str, now_s: float) -> Instructions:
        if self.link == SEATED:
            self._apart_s = now_s
        self.link, self._why_apart = APART, reason
        self._is_meeting = False
        # Not all agents at one moment.
        self._next_try_s = now_s + self._delay_s * (1 + self.identity.index / self.rules.num_agents)
        self._delay_s = min(max(_FIRST_DELAY_S, 2 * self._delay_s), _LONGEST_DELAY_S)
        return self._tell_what_is_untold()

    def _on_tick(self, workers: tuple[WorkerState, ...], now_s: float) -> Instructions:
        if self.link == APART:
            return self._try_again(now_s)
        if self.link == CONNECTING:
            return []
        silent_s = now_s - self._heard_s
        if silent_s > self.rules.rendezvous_silence_s:
            return [Disconnect(), *self._on_lost(f"it was silent for {silent_s:.1f} s", now_s)]
        # The first step is told at once: whether a generation gained anything decides how soon the next may start.
        is_first_step = not self._has_told_step and any(worker.step is not None for worker in workers)
        if self.link == SEATED and (is_first_step or now_s - self._beat_s >= self.rules.heartbeat_s):
            self._beat_s, self._has_told_step = now_s, self._has_told_step or is_first_step
            return [Send(Beat(workers))]
        return []

    def _try_again(self, now_s: float) -> Instructions:
        if self._exit_code is not None or now_s < self._next_try_s:
            return []
        if now_s - self._apart_s > self.rules.timeout_s:
            self._exit_code = self._own_exit_code()
            waited = words.no_rendezvous(self.rules.timeout_s, self.identity.rendezvous, self._why_apart)
            return [Tell(waited)]
        self.link = CONNECTING
        return [Connect()]

    def _own_exit_code(self) -> int:
        """What an agent ends with that cannot ask the others: they failed it, unless it has failed itself."""
        if self._ending is not None and distance_from_cause(self._ending.attempt) == 0:
            return self._ending.attempt.exit_code or 1
        return EXIT_PEER_LOST

    def _on_workers_ended(self, ended: WorkersEnded) -> Instructions:
        self._untold = ended.report
        if ended.exit_code is not None:
            self.workers = NONE
            return self._leave(ended.exit_code)
        is_called_off = self._is_meeting or self.link != SEATED
        if ended.ending is None and not ended.is_recalled and not is_called_off:
            self.workers = DONE
            return [Send(Ended(self.record.generation))]
        self.workers, self._ending = NONE, ended.ending
        if self._is_meeting:
            return [*self._tell_what_is_untold(), Prepare()]
        if self.link != SEATED:
            return self._tell_what_is_untold()
        return [Send(Ended(self.record.generation, ended.ending))] if ended.ending else []

    def _make_way(self) -> Instructions:
        """Sees to it that no worker is left, and then says so."""
        if self.workers in (RUNNING, RECALLED):
            return self._recall()
        self.workers = NONE
        return [Prepare()]

    def _recall(self) -> Instructions:
        if self.workers != RUNNING:
            return []
        self.workers = RECALLED
        return [Recall(self._wants_stacks)]

    def _leave(self, exit_code: int) -> Instructions:
        self._exit_code = exit_code
        return [Send(Leaving(exit_code))] if self.link == SEATED else []

    def _pass_on(self, text: str, author: int | None, report: str) -> Instructions:
        """The failure behind all others first, then what happened here, then what follows."""
        own, self._untold = self._untold, ""
        others = "" if author == self.identity.index else report
        told = others + own + text
        return [Tell(told)] if told else []

    def _tell_what_is_untold(self) -> Instructions:
        own, self._untold = self._untold, ""
        return [Tell(own)] if own else []
