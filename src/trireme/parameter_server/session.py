"""A worker's conversation with all servers: numbered requests, heartbeats, deadlines, and what to repeat.

A request stays open until it is answered. It is sent again when the server has started anew, when it has
forgotten this worker, or when a heartbeat shows that it never got the request: servers take repetitions as one.
One lock guards the sockets. Whoever holds it keeps the conversation alive: a waiting call, or the thread that
beats for a worker that computes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from trireme.errors import ConfigurationError, PeerLost, PeerTimeout, ProtocolError
from trireme.parameter_server.connection import Connection, Deadlines
from trireme.parameter_server.message_codec import decode_answer, encode_request
from trireme.parameter_server.messages import (
    Alive,
    Answer,
    Applied,
    Body,
    Create,
    Done,
    Heartbeat,
    Hello,
    Push,
    Refused,
    Request,
    Sender,
    Welcome,
)
from trireme.parameter_server.transport import Letter, Wire
from trireme.parameter_server.wire_format import Frame, Limits

_POLL_S = 0.05
_log = logging.getLogger(__name__)


class Party(Protocol):
    """The worker that a session speaks for. It is called with the lock held."""

    def hello(self, server: int) -> Hello:
        """The first words for a server."""

    def on_return(self, server: int, welcome: Welcome) -> None:
        """A server that had been left, or had left, greets again."""

    def on_answer(self, server: int, request: Request, body: Body) -> None:
        """An answer that nobody waits for."""


class Session:
    """All conversations of one worker process, `party`."""

    def __init__(
        self,
        wire: Wire,
        addresses: Sequence[str],
        sender: Sender,
        party: Party,
        deadlines: Deadlines,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connections = [Connection(address) for address in addresses]
        self.lock = threading.RLock()
        self._wire = wire
        self._sender = sender
        self._party = party
        self._deadlines = deadlines
        self._limits = limits
        self._clock = clock
        self._outgoing: list[Letter] = []

    def send(self, server: int, body: Body, is_awaited: bool = False) -> int:
        """Sends a request and returns its number; with `is_awaited`, `wait` gives the answer."""
        number = self.enqueue(server, body, is_awaited)
        self.pump(0.0)
        return number

    def enqueue(self, server: int, body: Body, is_awaited: bool = False) -> int:
        """`send` for callers inside a `pump`: the request leaves at the end of it."""
        with self.lock:
            connection = self.connections[server]
            connection.last_number += 1
            request = Request(self._sender, connection.last_number, body)
            connection.open[request.number] = request
            if is_awaited:
                connection.awaited.add(request.number)
            if connection.is_greeted:
                self._post(server, request)
            return request.number

    def wait(self, server: int, number: int, what: str) -> Body:
        """The answer to a request, whatever has to be repeated for it.

        PeerTimeout names the server when it is silent, or the workers that it waits for; PeerLost,
        ConfigurationError and ProtocolError say why there will be no answer.
        """
        connection = self.connections[server]
        self._wait_until(server, lambda: number in connection.answers, what)
        return connection.answers.pop(number)

    def wait_for_greetings(self) -> list[Welcome]:
        """Every server's welcome."""
        for server, connection in enumerate(self.connections):
            self._wait_until(server, lambda c=connection: c.is_greeted, "its greeting")  # type: ignore[misc]
        return [connection.welcome for connection in self.connections if connection.welcome]

    def wait_for_pushes(self, server: int, num_left: int) -> None:
        """Returns when at most `num_left` pushes are not yet part of the server's weights."""
        connection = self.connections[server]

        def is_enough() -> bool:
            return sum(isinstance(request.body, Push) for request in connection.open.values()) <= num_left

        self._wait_until(server, is_enough, "its pushes to be applied")

    def pump(self, timeout_s: float) -> None:
        """Sends what is due and takes in what arrives, waiting at most `timeout_s` for it."""
        with self.lock:
            is_first = True
            while is_first or self._outgoing:
                self._give_signs_of_life()
                outgoing, self._outgoing = self._outgoing, []
                for server, frames in self._wire.exchange(outgoing, timeout_s if is_first else 0.0):
                    self._receive(server, frames)
                is_first = False

    def try_pump(self) -> None:
        """`pump`, unless somebody else is at it."""
        if self.lock.acquire(blocking=False):
            try:
                self.pump(0.0)
            finally:
                self.lock.release()

    def close(self) -> None:
        with self.lock:
            self._wire.close()

    def _wait_until(self, server: int, is_over: Callable[[], bool], what: str) -> None:
        connection = self.connections[server]
        started_s = self._clock()
        timeout_s = 0.0
        while True:
            with self.lock:
                self.pump(timeout_s)
                if is_over():
                    return
                for other in self.connections:
                    if other.failure:
                        raise other.failure
            timeout_s = min(_POLL_S, self._deadlines.heartbeat_s / 2)
            self._check_deadlines(server, connection, started_s, what)

    def _check_deadlines(self, server: int, connection: Connection, started_s: float, what: str) -> None:
        now_s = self._clock()
        who = f"worker {self._sender.worker}"
        whom = f"parameter server {server} at {connection.address}"
        silent_s = now_s - max(connection.heard_s, started_s)
        if silent_s > self._deadlines.server_s:
            raise PeerTimeout(
                f"{whom} was silent for {silent_s:.1f} s while {who} waited for {what}. Expected an answer within "
                f"{self._deadlines.server_s:g} s: is it running, reachable, and does it have the same keys?"
            )
        if now_s - started_s > self._deadlines.peers_s:
            peers = ", ".join(map(str, connection.waiting_for)) or "nobody"
            raise PeerTimeout(
                f"{who} waited {now_s - started_s:.1f} s for {what} from {whom}, which is alive and waits for "
                f"worker {peers}. Expected them within {self._deadlines.peers_s:g} s"
            )

    def _give_signs_of_life(self) -> None:
        now_s = self._clock()
        for server, connection in enumerate(self.connections):
            if now_s - connection.spoke_s >= self._deadlines.heartbeat_s:
                connection.spoke_s = now_s
                self._post(server, Request(self._sender, connection.last_number, self._sign_of_life(server)))

    def _sign_of_life(self, server: int) -> Body:
        connection = self.connections[server]
        if connection.is_greeted:
            return Heartbeat()
        return self._party.hello(server)

    def _receive(self, server: int, frames: Sequence[Frame]) -> None:
        connection = self.connections[server]
        try:
            answer = decode_answer(frames, self._limits)
        except ProtocolError as error:
            connection.failure = ProtocolError(
                f"parameter server {server} at {connection.address} sent {error}"
            )
            return
        connection.heard_s = self._clock()
        match answer.body:
            case Welcome():
                self._on_welcome(server, answer.body)
            case Alive():
                self._on_alive(server, answer)
            case Refused():
                self._on_refused(server, answer.number, answer.body)
            case body if answer.number in connection.open:
                self._on_outcome(server, connection.open.pop(answer.number), body)

    def _on_outcome(self, server: int, request: Request, body: Body) -> None:
        connection = self.connections[server]
        if isinstance(request.body, Create) and isinstance(body, Done):
            connection.holds_variables = True
        connection.num_applied += isinstance(body, Applied)
        if request.number in connection.awaited:
            connection.awaited.discard(request.number)
            connection.answers[request.number] = body
        else:
            self._party.on_answer(server, request, body)

    def _on_welcome(self, server: int, welcome: Welcome) -> None:
        connection = self.connections[server]
        previous = connection.welcome
        if connection.is_greeted and previous is not None and previous.boot == welcome.boot:
            return
        if connection.holds_variables and not welcome.is_initialised:
            connection.failure = PeerLost(
                f"parameter server {server} at {connection.address} came back without its variables: it had no "
                "snapshot. Give the servers a directory for snapshots that outlives them"
            )
            return
        connection.welcome, connection.is_greeted = welcome, True
        connection.holds_variables |= welcome.is_initialised
        if previous is not None and previous.boot != welcome.boot:
            self._count_lost_updates(server, welcome)
        self._repeat(server)
        if previous is not None:
            self._party.on_return(server, welcome)

    def _count_lost_updates(self, server: int, welcome: Welcome) -> None:
        connection = self.connections[server]
        lost = max(0, connection.num_applied - welcome.num_applied)
        pushes = [request.body for request in connection.open.values() if isinstance(request.body, Push)]
        unanswered = sum(push.step < welcome.lacks_from for push in pushes)
        connection.num_applied = welcome.num_applied - unanswered
        connection.lost_updates += lost
        _log.warning(
            "parameter server %d at %s came back and lost %d updates of worker %d",
            server, connection.address, lost, self._sender.worker,
        )  # fmt: skip

    def _on_alive(self, server: int, answer: Answer) -> None:
        connection = self.connections[server]
        assert isinstance(answer.body, Alive)
        connection.waiting_for = answer.body.waiting_for
        unheard = [n for n in connection.open if n <= answer.number and n not in answer.body.pending]
        if unheard:
            self._repeat(server)

    def _on_refused(self, server: int, number: int, refused: Refused) -> None:
        connection = self.connections[server]
        if refused.code == "hello_first":
            if connection.is_greeted:
                connection.is_greeted = False
                connection.spoke_s = float("-inf")
            return
        if refused.code == "out_of_turn":
            # All that follows a gap is refused: one repetition fills it.
            if self._clock() - connection.repeated_s >= self._deadlines.heartbeat_s:
                self._repeat(server)
            return
        kind = {"superseded": PeerLost, "protocol": ProtocolError}.get(refused.code, ConfigurationError)
        request = connection.open.pop(number, None)
        about = f" ({request.body.kind})" if request else ""
        connection.failure = kind(
            f"parameter server {server} at {connection.address} refused a request{about} of worker "
            f"{self._sender.worker}: {refused.text}"
        )

    def _repeat(self, server: int) -> None:
        """Sends every open request again, in their order; what was about to leave is among them."""
        self._outgoing = [letter for letter in self._outgoing if letter[0] != server]
        self.connections[server].repeated_s = self._clock()
        for _, request in sorted(self.connections[server].open.items()):
            self._post(server, request)

    def _post(self, server: int, request: Request) -> None:
        self._outgoing.append((server, encode_request(request)))
