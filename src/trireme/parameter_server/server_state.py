"""What one server knows and decides: events in, instructions out, no sockets, no clock, no arrays of its own.

Events are `Request`s and `Tick`s. Whatever happens in the world, such as a worker that went silent or a second
process that claims the same rank, is an order of events here, so each race is a row in a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trireme.parameter_server import checks
from trireme.parameter_server import instructions as do
from trireme.parameter_server.gradients import RowGradient, combine
from trireme.parameter_server.hearing import Hearing
from trireme.parameter_server.instructions import Instruction, Reply
from trireme.parameter_server.messages import (
    Alive,
    Applied,
    Assign,
    Body,
    Bye,
    Configure,
    Create,
    Done,
    EpochOver,
    Gather,
    Heartbeat,
    Hello,
    Idle,
    NextRange,
    Pull,
    Push,
    RangeDone,
    RangeGranted,
    Ready,
    Refused,
    Request,
    TakeSnapshot,
    Welcome,
)
from trireme.parameter_server.partition import Slice
from trireme.parameter_server.rules import TOLD_BY_WORKERS, Rules, Statistics, Tick
from trireme.parameter_server.shares import Over, Range, Shares
from trireme.parameter_server.steps import Receipt, Steps

# Which worker others are told to be waiting for when an epoch was not begun: in practice only the chief begins any.
_OPENS_EPOCHS = 0


class ServerState:
    """The state machine. `boot` is a random name for this life of the server process."""

    def __init__(self, rules: Rules, boot: str) -> None:
        self.rules = rules
        self.statistics = Statistics()
        self.slices: dict[str, Slice] = {}
        self.is_initialised = False
        self.shares = Shares(rules.num_workers)
        self._set_rules(rules)
        self._boot = boot
        self._told_by_workers = rules.max_staleness == TOLD_BY_WORKERS
        self._placement: str | None = None
        self._finished: set[int] = set()
        self._gone: set[int] = set()
        self._greeted: set[int] = set()
        self._hearing = Hearing(rules.worker_timeout_s)
        self._waiting: dict[int, dict[int, Request]] = {}
        self._handlers: dict[type[Body], Callable[[Request, Any], list[Instruction]]] = {
            Ready: self._on_ready, Create: self._on_create, Configure: self._on_configure, Assign: self._on_assign,
            Push: self._on_push, Pull: self._on_question, NextRange: self._on_question, Gather: self._on_question,
            Idle: self._on_idle, RangeDone: self._on_range_done, TakeSnapshot: self._on_snapshot, Bye: self._on_bye,
        }  # fmt: skip

    def handle(self, event: Request | Tick) -> list[Instruction]:
        """Everything to do because of `event`, in order."""
        instructions = self._on_tick(event) if isinstance(event, Tick) else self._on_request(event)
        instructions += self._updates() + self._answers()
        if self._is_finished():
            instructions.append(do.End())
        return [*map(do.Record, self.shares.entries()), *instructions]

    def record(self) -> dict[str, Any]:
        """What a snapshot must hold beside the arrays (plain JSON)."""
        return {
            "version": self.steps.version,
            "max_staleness": self.rules.max_staleness,
            "workers": self.steps.record(),
            "placement": self._placement,
            "finished": sorted(self._finished),
        }

    def restore(self, record: Mapping[str, Any], slices: list[Slice]) -> None:
        """Goes back to a recorded state; its workers are waited for, and must say hello again."""
        self._set_rules(replace(self.rules, max_staleness=record["max_staleness"]))
        self.steps.version = int(record["version"])
        self.steps.restore(record["workers"])
        self._placement = record["placement"]
        self._finished = set(record["finished"])
        self.slices = {piece.name: piece for piece in slices}
        self.is_initialised = True

    def waited_for_by(self, worker: int) -> set[int]:
        """The workers that open requests of `worker` wait for."""
        waiting = self._waiting.get(worker, {}).values()
        blockers: set[int] = set()
        if self.steps.open_requests(worker) or any(isinstance(request.body, Pull) for request in waiting):
            blockers |= self.steps.blockers(worker) if self.is_initialised else {0}
        for body in (request.body for request in waiting):
            if isinstance(body, Gather):
                blockers |= self._not_at(body.epoch)
            if isinstance(body, NextRange):
                is_unopened = self.shares.waits_for_opening(body.epoch)
                blockers |= {_OPENS_EPOCHS} if is_unopened else set(self.shares.holders())
        return blockers - {worker}

    def _on_tick(self, tick: Tick) -> list[Instruction]:
        # After a restart the journal may name holders of rows whom the snapshot does not know yet.
        expected = {*self.steps.members, *self.shares.holders()}
        silent = self._hearing.silent(tick.now_s, expected)
        why = f"was silent for {self.rules.worker_timeout_s:g} s"
        return [instruction for worker in silent for instruction in self._lose(worker, why)]

    def _on_request(self, request: Request) -> list[Instruction]:
        worker = request.sender.worker
        if worker >= self.rules.num_workers:
            return _refuse(request, "invalid", f"worker {worker} of {self.rules.num_workers}")
        member = self.steps.members.get(worker)
        if isinstance(request.body, Hello):
            return self._on_hello(request, request.body)
        if member is None or worker not in self._greeted:
            if isinstance(request.body, Bye) and worker in self._finished:
                return [Reply(request.sender, request.number, Done())]
            return _refuse(request, "hello_first", f"worker {worker} has not said hello to this server")
        if member.sender != request.sender:
            return _refuse(request, "superseded", f"another process has become worker {worker}")
        self._hearing.heard(worker)
        if isinstance(request.body, Heartbeat):
            return self._on_heartbeat(request)
        if request.number > member.next_number:
            text = f"request {request.number} of worker {worker} came instead of request {member.next_number}"
            return _refuse(request, "out_of_turn", text)
        is_repeated = request.number < member.next_number
        if is_repeated and isinstance(request.body, Ready | Idle | Configure | Assign):
            # It was carried out, and what came after it must not be undone.
            return [Reply(request.sender, request.number, Done())]
        member.last_number = max(member.last_number, request.number)
        return self._handlers[type(request.body)](request, request.body)

    def _on_hello(self, request: Request, hello: Hello) -> list[Instruction]:
        sender = request.sender
        member = self.steps.members.get(sender.worker)
        is_other = member is not None and member.sender != sender
        wrong = checks.wrong_in_hello(hello, self.rules, self._placement, self._told_by_workers)
        if wrong:
            return _refuse(request, "invalid", wrong)
        # A restored member may be an earlier life of the one that speaks, or the speaker one of a newer member.
        if member is not None and hello.step is not None and sender.session < member.sender.session:
            return _refuse(request, "superseded", f"another process has become worker {sender.worker}")
        self._placement = hello.placement
        if self.rules.max_staleness == TOLD_BY_WORKERS:
            self._set_rules(replace(self.rules, max_staleness=hello.max_staleness))
        instructions = self._lose(sender.worker, "was started again") if is_other else []
        lacks_from = self.steps.join(sender, hello.step, hello.idle_epoch)
        member = self.steps.members[sender.worker]
        member.last_number = max(member.last_number, hello.first_number - 1)
        member.answered = frozenset(hello.answered)
        step = self.steps.current_step(without=sender.worker if hello.step is not None else None)
        self._greeted.add(sender.worker)
        self._gone.discard(sender.worker)
        self._finished.discard(sender.worker)
        self._hearing.heard(sender.worker)
        self._waiting.setdefault(sender.worker, {})
        welcome = Welcome(
            self._boot, step, lacks_from, member.num_applied,
            self.is_initialised, self.steps.version, self.shares.epoch,
        )  # fmt: skip
        return [*instructions, Reply(sender, request.number, welcome)]

    def _on_ready(self, request: Request, ready: Ready) -> list[Instruction]:
        self.steps.set_step(request.sender.worker, ready.step)
        return [Reply(request.sender, request.number, Done())]

    def _on_create(self, request: Request, create: Create) -> list[Instruction]:
        wrong = checks.wrong_in_create(create, self.slices)
        if wrong:
            return _refuse(request, "invalid", wrong)
        done = Reply(request.sender, request.number, Done(is_used=not self.is_initialised))
        if self.is_initialised:
            return [done]
        self.slices |= {piece.name: piece for piece in create.slices}
        self.is_initialised = create.is_last
        return [do.CreateSlices(create), done]

    def _on_configure(self, request: Request, configure: Configure) -> list[Instruction]:
        return [do.Reconfigure(configure.settings), Reply(request.sender, request.number, Done())]

    def _on_assign(self, request: Request, assign: Assign) -> list[Instruction]:
        wrong = checks.wrong_in_assign(assign.arrays, self.slices)
        if wrong:
            return _refuse(request, "invalid", wrong)
        return [do.AssignSlices(assign.arrays), Reply(request.sender, request.number, Done())]

    def _on_push(self, request: Request, push: Push) -> list[Instruction]:
        wrong = checks.wrong_in_push(push.arrays, self.slices)
        if not self.is_initialised:
            wrong = "a push before the variables exist: pull the first weights, that waits for the chief to make them"
        if wrong:
            return _refuse(request, "invalid", wrong)
        self.statistics.pushes += 1
        receipt = self.steps.push(request.sender, request.number, push)
        if receipt is None:
            return []
        self.statistics.duplicates += 1
        return [self._applied(receipt)]

    def _on_question(self, request: Request, question: Pull | NextRange | Gather) -> list[Instruction]:
        """Keeps a request until `_answers` can answer it, which may be at once."""
        if not isinstance(question, Pull) and (wrong := checks.wrong_in_rows(question, self.rules)):
            return _refuse(request, "invalid", wrong)
        self._waiting[request.sender.worker][request.number] = request
        return []

    def _on_range_done(self, request: Request, done: RangeDone) -> list[Instruction]:
        wrong = checks.wrong_in_totals(done.arrays, self.shares)
        if wrong:
            return _refuse(request, "invalid", wrong)
        totals = {name: value for name, value in done.arrays.items() if not isinstance(value, RowGradient)}
        is_used = self.shares.done(request.sender.worker, done.range_id, done.epoch, totals)
        self.shares.close(self.steps.newest_step)
        return [Reply(request.sender, request.number, Done(is_used))]

    def _on_idle(self, request: Request, idle: Idle) -> list[Instruction]:
        self.steps.set_idle(request.sender.worker, idle.epoch)
        return [Reply(request.sender, request.number, Done())]

    def _on_heartbeat(self, request: Request) -> list[Instruction]:
        worker = request.sender.worker
        pending = [*self._waiting[worker], *self.steps.open_requests(worker)]
        blockers = tuple(sorted(self.waited_for_by(worker)))
        return [Reply(request.sender, request.number, Alive(self._boot, tuple(sorted(pending)), blockers))]

    def _on_snapshot(self, request: Request, _: TakeSnapshot) -> list[Instruction]:
        return [do.SaveSnapshot(request.sender, request.number)]

    def _on_bye(self, request: Request, _: Bye) -> list[Instruction]:
        worker = request.sender.worker
        self._forget(worker)
        self._finished.add(worker)
        return [Reply(request.sender, request.number, Done())]

    def _updates(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        while update := self.steps.next_update():
            if any(weight > 0 for weight, _ in update.contributions):
                self.statistics.updates += 1
                instructions.append(do.Apply(combine(update.contributions, self.rules.reduction)))
            for receipt in update.receipts:
                self.statistics.count_staleness(receipt.staleness)
                instructions.append(self._applied(receipt))
        return instructions

    def _answers(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        for worker in sorted(self._waiting):
            for number, request in sorted(self._waiting[worker].items()):
                answer = self._answer(request)
                if answer is not None:
                    del self._waiting[worker][number]
                    instructions.append(answer)
        return instructions

    def _answer(self, request: Request) -> Instruction | None:
        match request.body:
            case Pull():
                return self._answer_pull(request)
            case Gather(epoch):
                is_open = self._not_at(epoch) - {request.sender.worker}
                return None if is_open else Reply(request.sender, request.number, Done())
        return self._answer_next_range(request)

    def _not_at(self, epoch: int) -> set[int]:
        """The workers that are here and do not wait for `epoch` to begin."""
        waiting = {
            worker
            for worker, requests in self._waiting.items()
            for request in requests.values()
            if isinstance(request.body, NextRange) and request.body.epoch >= epoch
        }
        return self._greeted - waiting

    def _answer_pull(self, request: Request) -> Instruction | None:
        pull = request.body
        assert isinstance(pull, Pull)
        if not self.is_initialised or self.steps.blockers(request.sender.worker):
            return None
        wrong = checks.wrong_in_pull(pull.slices, pull.arrays, self.slices)
        if wrong:
            return Reply(request.sender, request.number, Refused("invalid", wrong))
        rows = {name: value for name, value in pull.arrays.items() if not isinstance(value, RowGradient)}
        return do.SendValues(request.sender, request.number, self.steps.version, pull.slices, rows)

    def _answer_next_range(self, request: Request) -> Instruction | None:
        ask, sender = request.body, request.sender
        assert isinstance(ask, NextRange)
        outcome = self.shares.request(
            sender.worker, ask.epoch, ask.num_rows, ask.batch_rows, ask.may_open, ask.what
        )
        body: Body
        match outcome:
            case Range():
                if ask.is_idle:
                    self.steps.set_step(sender.worker, self.steps.current_step())
                step = self.steps.members[sender.worker].step
                body = RangeGranted(outcome.epoch, outcome.range_id, outcome.start, outcome.stop, step)
            case Over():
                self.shares.close(self.steps.newest_step)
                body = EpochOver(outcome.epoch, self.shares.over_step(outcome.epoch), outcome.totals)
            case str():
                body = Refused("invalid", outcome)
            case None if ask.is_idle or self.shares.waits_for_opening(ask.epoch):
                return None
            case None:
                body = Done(is_used=False)
        return Reply(sender, request.number, body)

    def _applied(self, receipt: Receipt) -> Reply:
        body = Applied(receipt.step, self.steps.version, receipt.staleness)
        return Reply(receipt.sender, receipt.number, body)

    def _lose(self, worker: int, why: str) -> list[Instruction]:
        self._forget(worker)
        self._gone.add(worker)
        self.statistics.workers_lost += 1
        return [do.Report(f"worker {worker} {why}: its unfinished rows go to others, nobody waits for it")]

    def _forget(self, worker: int) -> None:
        self.steps.leave(worker)
        self.shares.lost(worker)
        self._greeted.discard(worker)
        self._waiting.pop(worker, None)
        self._hearing.forget(worker)

    def _set_rules(self, rules: Rules) -> None:
        self.rules = rules
        self.steps = Steps(rules.num_workers, rules.max_staleness)
        self.shares.is_lock_step = rules.max_staleness == 0

    def _is_finished(self) -> bool:
        return bool(self._finished) and len(self._finished | self._gone) == self.rules.num_workers


def _refuse(request: Request, code: str, text: str) -> list[Instruction]:
    return [Reply(request.sender, request.number, Refused(code, text))]
