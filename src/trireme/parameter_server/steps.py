"""How far each worker is, which pushes become an update when, and who has to wait for whom.

`max_staleness=None`: every push is an update at once and nobody waits. `k > 0`: the same, but a worker may
not pull while another is more than k steps behind it (stale synchronous parallel, Ho et al., 2013). `0` is lock
step: the pushes of one step are collected until every worker has made its own, then they are one update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trireme.parameter_server.gradients import Contribution
from trireme.parameter_server.messages import Push, Sender


@dataclass
class Member:
    """A live worker. `step` is its next push, `idle_epoch` the epoch in which it has no rows left. All its requests
    up to `last_number` were handled, and those in `answered` by an earlier life of this server."""

    sender: Sender
    step: int
    epoch: int = 0
    idle_epoch: int | None = None
    pending: set[int] = field(default_factory=set)
    num_applied: int = 0
    last_number: int = 0
    answered: frozenset[int] = frozenset()

    @property
    def next_number(self) -> int:
        """The number of the request that comes next."""
        number = self.last_number + 1
        while number in self.answered:
            number += 1
        return number

    @property
    def applied_step(self) -> int:
        """The oldest push that is not yet part of the weights."""
        return min(self.pending, default=self.step)


@dataclass(frozen=True)
class Receipt:
    """Which push, under which request number, an update contains, and how many updates it had missed."""

    sender: Sender
    number: int
    step: int
    staleness: int


@dataclass(frozen=True)
class Update:
    """One application: what to combine, in rank order, and whose pushes it contains."""

    contributions: tuple[Contribution, ...]
    receipts: tuple[Receipt, ...]


@dataclass
class _Waiting:
    sender: Sender
    number: int
    push: Push


class Steps:
    """The live workers and their pushes. In lock step, a worker that has not yet said hello is waited for."""

    def __init__(self, num_workers: int, max_staleness: int | None) -> None:
        self.members: dict[int, Member] = {}
        self.absent = set(range(num_workers)) if max_staleness == 0 else set[int]()
        self.version = 0
        self._max_staleness = max_staleness
        self._pending: dict[int, dict[int, _Waiting]] = {}
        self._departed: dict[int, Member] = {}

    @property
    def newest_step(self) -> int:
        """The step of the worker that is or was furthest."""
        known = [*self.members.values(), *self._departed.values()]
        return max((member.step for member in known), default=0)

    def current_step(self, without: int | None = None) -> int:
        """The oldest step that is under way, perhaps `without` what one of the workers does."""
        others = [member for rank, member in self.members.items() if rank != without]
        busy = [member.step for member in others if member.idle_epoch is None]
        return min([*busy, *self._pending], default=self.newest_step)

    def join(self, sender: Sender, step: int | None, idle_epoch: int | None) -> int:
        """Counts a worker in; returns the oldest of its pushes that is not here.

        In lock step a newcomer stands at the current step at once, so that no update can happen until it has
        made known (`set_step`) where it begins on all servers.
        """
        here = self.members.get(sender.worker) or self._departed.get(sender.worker)
        if here is None or here.sender != sender:
            self.leave(sender.worker)
            begins_at = self.current_step() if step is None else step
            here = Member(sender, begins_at, self._newest_epoch())
        lacks_from = here.step
        here.step = max(here.step, step or 0)
        here.idle_epoch = idle_epoch
        self.members[sender.worker] = here
        self._departed.pop(sender.worker, None)
        self.absent.discard(sender.worker)
        return lacks_from

    def set_step(self, worker: int, step: int) -> None:
        """The worker's next push is that of `step`, and it has rows to work on."""
        member = self.members[worker]
        member.step = max(member.step, step)
        member.idle_epoch = None

    def set_idle(self, worker: int, epoch: int) -> None:
        self.members[worker].idle_epoch = epoch

    def leave(self, worker: int) -> None:
        """Nobody waits for `worker` any longer. A push of its that is complete stays in its step."""
        member = self.members.pop(worker, None)
        if member is not None:
            self._departed[worker] = member
        self.absent.discard(worker)

    def push(self, sender: Sender, number: int, push: Push) -> Receipt | None:
        """Takes a push in; a `Receipt` if it had been applied before.

        Steps may be skipped: those that an earlier life of this server had answered do not come again.
        """
        member = self.members[sender.worker]
        if push.step < member.step:
            waiting = self._pending.get(push.step, {}).get(sender.worker)
            if waiting is None:
                return Receipt(sender, number, push.step, staleness=0)
            waiting.number = number
            return None
        member.step = push.step + 1
        member.epoch = push.epoch
        member.pending.add(push.step)
        # One push per rank and step: what an earlier life of this worker left in an open step is replaced.
        self._pending.setdefault(push.step, {})[sender.worker] = _Waiting(sender, number, push)
        return None

    def open_requests(self, worker: int) -> list[int]:
        """The request numbers of the worker's pushes that are not yet part of the weights."""
        sender = self.members[worker].sender
        waiting = [pushes[worker] for pushes in self._pending.values() if worker in pushes]
        return [item.number for item in waiting if item.sender == sender]

    def next_update(self) -> Update | None:
        """The next update whose pushes are complete, oldest step first; call until None."""
        for step in sorted(self._pending):
            waiting = self._pending[step]
            if self._max_staleness == 0 and self._missing(step, waiting):
                return None
            del self._pending[step]
            return self._apply([waiting[worker] for worker in sorted(waiting)])
        return None

    def blockers(self, worker: int) -> set[int]:
        """The workers whose next push must come before `worker` may pull."""
        me = self.members[worker]
        if self._max_staleness is None:
            return set()
        if self._max_staleness == 0:
            open_steps = [step for step in self._pending if step < me.step]
            return self._missing(min(open_steps), self._pending[min(open_steps)]) if open_steps else set()
        others = {rank: member for rank, member in self.members.items() if rank != worker}
        return {
            rank
            for rank, member in others.items()
            if member.step < me.step - self._max_staleness and member.idle_epoch != me.epoch
        }

    def record(self) -> dict[str, list[Any]]:
        """Who is how far in the weights as they are: for a snapshot (plain JSON)."""
        return {
            str(rank): [m.sender.session, m.applied_step, m.epoch, m.idle_epoch, m.num_applied]
            for rank, m in self.members.items()
        }

    def restore(self, record: Mapping[str, list[Any]]) -> None:
        """Counts in everybody in `record`: they are waited for until they are lost."""
        for rank, (session, step, epoch, idle_epoch, num_applied) in record.items():
            sender = Sender(int(rank), session)
            self.members[sender.worker] = Member(sender, step, epoch, idle_epoch, num_applied=num_applied)
            self.absent.discard(sender.worker)

    def _newest_epoch(self) -> int:
        return max((max(member.epoch, member.idle_epoch or 0) for member in self.members.values()), default=0)

    def _missing(self, step: int, waiting: Mapping[int, _Waiting]) -> set[int]:
        epoch = next(iter(waiting.values())).push.epoch
        behind = {
            rank
            for rank, member in self.members.items()
            if member.step <= step and member.idle_epoch != epoch
        }
        return behind | self.absent

    def _apply(self, waiting: list[_Waiting]) -> Update:
        receipts = []
        for item in waiting:
            member = self.members.get(item.sender.worker) or self._departed.get(item.sender.worker)
            if member is not None and member.sender == item.sender:
                member.pending.discard(item.push.step)
                member.num_applied += 1
            staleness = max(0, self.version - item.push.version)
            receipts.append(Receipt(item.sender, item.number, item.push.step, staleness))
        contributions = tuple((item.push.weight, item.push.arrays) for item in waiting)
        if any(weight > 0 for weight, _ in contributions):
            self.version += 1
        return Update(contributions, tuple(receipts))
