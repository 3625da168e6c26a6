"""What a worker does with the parameter servers: push gradients, pull weights, take rows to work on."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from trireme.errors import UsageError
from trireme.parameter_server.gradients import Gradient, NDArray, RowGradient
from trireme.parameter_server.keys import WorkerKeys
from trireme.parameter_server.messages import (
    Applied,
    Body,
    Bye,
    Configure,
    Done,
    EpochOver,
    Gather,
    Hello,
    Idle,
    NextRange,
    Push,
    RangeDone,
    RangeGranted,
    Ready,
    Request,
    Sender,
    TakeSnapshot,
    Welcome,
)
from trireme.parameter_server.partition import Placement
from trireme.parameter_server.parts import assignments, check_gradient, creations
from trireme.parameter_server.pulls import PendingPull, start_pull
from trireme.parameter_server.session import Deadlines, Session
from trireme.parameter_server.shares import Over, Range
from trireme.parameter_server.transport import PathLike, Wire, WorkerWire
from trireme.parameter_server.wire_format import Limits

_MAX_OPEN_PUSHES = 4
_CHIEF = 0


@dataclass
class ClientStatistics:
    """What a worker counted. Staleness is summed over servers: one number per applied push and server."""

    applied: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    lost_updates: int = 0
    ranges_not_counted: int = 0


class Client:
    """One worker's side. Use it as a context manager, or call `finish` (the work is done) or `close`.

    Arrays given to `push` must stay as they are until a later `pull` or `flush` has returned. Every call that
    waits raises `PeerTimeout`, which names the server, when its deadline passes. Not for several threads at once.
    """

    def __init__(
        self,
        servers: Sequence[str],
        worker: int,
        placement: Placement,
        *,
        max_staleness: int | None = None,
        run_id: str = "",
        keys: WorkerKeys | None = None,
        deadlines: Deadlines | None = None,
        limits: Limits | None = None,
        socket_directory: PathLike | None = None,
        wire: Wire | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.placement = placement
        self.worker = worker
        self.step = 0
        self._run_id = run_id
        self._max_staleness = max_staleness
        self._is_ready = False
        self._idle_epoch: int | None = None
        self._statistics = ClientStatistics()
        self._versions = [0] * len(servers)
        if len(servers) != len(placement.by_server):
            raise UsageError(
                f"a placement on {len(placement.by_server)} servers, but {len(servers)} addresses"
            )
        deadlines = deadlines or Deadlines()
        limits = limits or Limits()
        sender = Sender(worker, f"{time.time_ns():020d}-{secrets.token_hex(4)}")
        wire = wire or WorkerWire(servers, keys, limits, socket_directory)
        self._session = Session(wire, servers, sender, self, deadlines, limits, clock)
        self._is_closed = threading.Event()
        self._heart = threading.Thread(
            target=self._beat, args=(deadlines.heartbeat_s / 2,), name="trireme-heartbeat", daemon=True
        )

    def connect(self) -> int:
        """Greets all servers; returns the epoch that rows are handed out of (0 in a new run)."""
        self._heart.start()
        welcomes = self._session.wait_for_greetings()
        # The servers may be a step apart; all of them hold still until they know where this worker begins.
        self._set_step(max(welcome.step for welcome in welcomes))
        return welcomes[_CHIEF].epoch

    def create(self, values: Mapping[str, NDArray], settings: Mapping[str, Any] | None = None) -> bool:
        """The chief makes all variables: `values` holds those whose spec has no initializer.

        `settings` (plain JSON) configure the updaters. Returns False when the servers had the variables already,
        because the chief or the servers came back: then the servers' values hold.
        """
        outcomes = self._ask_each(
            lambda server: creations(self.placement, server, values, settings or {}), "its variables"
        )
        return all(isinstance(outcome, Done) and outcome.is_used for outcome in outcomes)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Hands new settings, such as a learning rate, to the updaters of all servers."""
        self._ask_all(Configure(settings), "its new settings")

    def assign(self, values: Mapping[str, NDArray]) -> None:
        """Gives whole variables other values. `gather` before: pushes under way would go on from them."""
        self._ask_each(lambda server: assignments(self.placement, server, values), "its new values")

    def push(self, gradients: Mapping[str, Gradient], weight: float = 1.0, epoch: int = 0) -> None:
        """Sends the gradients of one step, by variable; returns before they have arrived. A pull must come first.

        In lock step `weight` is this worker's part in the mean: its number of rows, 0 for none. An empty shard
        pushes too, with no gradients and weight 0. `epoch` is that of the rows if `next_range` gave them.
        """
        for server in range(len(self._versions)):
            self._session.wait_for_pushes(server, _MAX_OPEN_PUSHES - 1)
        parts: list[dict[str, Gradient]] = [{} for _ in self._versions]
        for variable, gradient in gradients.items():
            for piece, part in self.placement.split_gradient(
                variable, check_gradient(self.placement, variable, gradient)
            ):
                parts[self.placement.server_of[piece.name]][piece.name] = part
        with self._session.lock:
            step, self.step = self.step, self.step + 1
            for server, arrays in enumerate(parts):
                self._session.send(server, Push(step, epoch, float(weight), self._versions[server], arrays))

    def start_pull(
        self, rows: Mapping[str, NDArray] | None = None, variables: Sequence[str] | None = None
    ) -> PendingPull:
        """Asks for weights and returns at once; `result()` of what it returns waits for them. See `pull`."""
        return start_pull(self._session, self.placement, self._versions, rows or {}, variables)

    def pull(
        self, rows: Mapping[str, NDArray] | None = None, variables: Sequence[str] | None = None
    ) -> dict[str, NDArray]:
        """The newest weights that the staleness bound allows, including all pushes of this worker.

        `rows` names tables and integers of any shape: the result has the shape `(*integers.shape, *row_shape)`.
        `variables` are those wanted as a whole, by default all that are not in `rows`. Until the chief has made
        the variables, this waits.
        """
        return self.start_pull(rows, variables).result()

    def next_range(
        self, epoch: int, num_rows: int, batch_rows: int, *, may_open: bool = True, what: str = ""
    ) -> Range | Over:
        """The next rows for this worker, or the end of the epoch with everybody's totals.

        The epoch has `num_rows` rows; ranges are multiples of `batch_rows`. Waits while others work on the last
        rows, since those come back if a worker is lost. Numbers of epochs only grow; one that was passed over is
        over, without totals. Without `may_open` this waits until another worker has begun the epoch. `what` says
        in words what the rows are for, and must be the same for all that take rows of an epoch.
        """
        answer = self._ask(NextRange(epoch, num_rows, batch_rows, False, may_open, what))
        if isinstance(answer, Done):
            self._idle_epoch = epoch
            self._ask_all(Idle(epoch), "its note that this worker is idle")
            answer = self._ask(NextRange(epoch, num_rows, batch_rows, True, may_open, what))
        if isinstance(answer, RangeGranted):
            if self._idle_epoch is not None:
                self._set_step(answer.step)
            return Range(answer.epoch, answer.range_id, answer.start, answer.stop)
        assert isinstance(answer, EpochOver)
        self._set_step(answer.step)
        totals = {name: value for name, value in answer.arrays.items() if not isinstance(value, RowGradient)}
        return Over(answer.epoch, totals)

    def range_done(self, done: Range, totals: Mapping[str, Any] | None = None) -> bool:
        """Reports a finished range; `totals` (numbers or arrays by name) are added to the epoch's totals.

        False when the rows were given to somebody else because this worker seemed lost: nothing is counted.
        """
        arrays = {name: np.asarray(value, np.float64) for name, value in (totals or {}).items()}
        answer = self._ask(RangeDone(done.epoch, done.range_id, arrays))
        is_counted = isinstance(answer, Done) and answer.is_used
        self._statistics.ranges_not_counted += not is_counted
        return is_counted

    def gather(self, epoch: int) -> None:
        """Returns when all other workers that are here wait for `epoch` to begin."""
        self._ask(Gather(epoch))

    def take_snapshot(self) -> None:
        """Returns when every server has a snapshot on disk."""
        self._ask_all(TakeSnapshot(), "its snapshot")

    def flush(self) -> None:
        """Returns when all pushes are part of the weights."""
        for server in range(len(self._versions)):
            self._session.wait_for_pushes(server, 0)

    def finish(self) -> None:
        """Says that this worker's work is done and closes; the servers end when all workers have said so."""
        try:
            self.flush()
            self._ask_all(Bye(), "its goodbye")
        finally:
            self.close()

    def close(self) -> None:
        """Leaves without a word: the servers count this worker as lost when they miss its heartbeat."""
        if not self._is_closed.is_set():
            self._is_closed.set()
            if self._heart.ident:
                self._heart.join()
            self._session.close()

    @property
    def num_updates(self) -> int:
        """How many updates are part of the weights that were pulled last; on the server that is furthest."""
        return max(self._versions)

    @property
    def statistics(self) -> ClientStatistics:
        """Counts so far. `lost_updates`: pushes that a restarted server does not have."""
        self._statistics.lost_updates = sum(c.lost_updates for c in self._session.connections)
        return self._statistics

    def __enter__(self) -> Client:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._is_closed.is_set():
            self.finish()
        self.close()

    def hello(self, server: int) -> Hello:
        """The first words on a connection; after the first time, from the oldest push that can be repeated."""
        connection = self._session.connections[server]
        first_number = min(connection.open, default=connection.last_number + 1)
        numbers = range(first_number, connection.last_number + 1)
        answered = tuple(number for number in numbers if number not in connection.open)
        steps = [request.body.step for request in connection.open.values() if isinstance(request.body, Push)]
        step = min([self.step, *steps]) if self._is_ready else None
        return Hello(
            self._run_id, self.placement.fingerprint, first_number, answered, step, self._idle_epoch,
            self._max_staleness,
        )  # fmt: skip

    def on_return(self, server: int, welcome: Welcome) -> None:
        """A server had lost this worker, or had been lost itself: go on where the others are."""
        if self._is_ready and welcome.step > self.step and self._idle_epoch is None:
            self._set_step(welcome.step)

    def on_answer(self, server: int, request: Request, body: Body) -> None:
        if isinstance(body, Applied):
            self._statistics.applied += 1
            self._statistics.staleness_sum += body.staleness
            self._statistics.staleness_max = max(self._statistics.staleness_max, body.staleness)

    def _set_step(self, step: int) -> None:
        """Makes known to all servers where this worker goes on. What follows on each connection comes after it."""
        with self._session.lock:
            self.step = max(self.step, step)
            self._is_ready = True
            self._idle_epoch = None
            for server in range(len(self._versions)):
                self._session.enqueue(server, Ready(self.step))

    def _ask(self, body: Body) -> Body:
        number = self._session.send(_CHIEF, body, is_awaited=True)
        return self._session.wait(_CHIEF, number, "rows to work on")

    def _ask_all(self, body: Body, what: str) -> None:
        self._ask_each(lambda server: (body,), what)

    def _ask_each(self, bodies: Callable[[int], Iterable[Body]], what: str) -> list[Body]:
        """Sends every server what is for it, then waits for all answers."""
        requests = [
            (server, self._session.send(server, body, is_awaited=True))
            for server in range(len(self._versions))
            for body in bodies(server)
        ]
        return [self._session.wait(server, number, what) for server, number in requests]

    def _beat(self, interval_s: float) -> None:
        while not self._is_closed.wait(interval_s):
            self._session.try_pump()
