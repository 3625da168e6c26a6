"""Sealed messages over TCP: connections that never block, and what happens on them."""

from __future__ import annotations

import os
import selectors
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from trireme.agent.channel import Channel
from trireme.agent.messages import Message, decode, encode
from trireme.errors import ConfigurationError, ProtocolError

# A connection on which nobody has proved himself by then is closed.
PROOF_WITHIN_S = 5.0
_MAX_STRANGERS = 64
_CHUNK_BYTES = 1 << 16
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")


@dataclass(frozen=True)
class Opened:
    """Both ends of a connection have proved who they are."""

    connection: int


@dataclass(frozen=True)
class Arrived:
    """A message came on a connection."""

    connection: int
    message: Message


@dataclass(frozen=True)
class Ended:
    """A connection is gone; `was_open` says whether the other end had proved itself."""

    connection: int
    reason: str
    was_open: bool


Happening: TypeAlias = Opened | Arrived | Ended


@dataclass
class _Connection:
    socket: socket.socket
    channel: Channel
    began_s: float
    is_server: bool
    is_connecting: bool = False
    is_closing: bool = False
    addresses: list[tuple[int, tuple[object, ...]]] = field(default_factory=list)


class Transport:
    """All connections of an agent. `poll` makes everything happen, in the thread that calls it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}
        self._last = 0
        self._listener: socket.socket | None = None
        self._happened: list[Happening] = []
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)

    def listen(self, host: str, port: int) -> int:
        """Accepts connections from others, at all addresses of this machine unless `host` is loopback.

        Returns the port: port 0 takes a free one.
        """
        where = "127.0.0.1" if host in _LOOPBACK else ""
        both = not where and socket.has_dualstack_ipv6()
        try:
            self._listener = socket.create_server(
                (where, port),
                family=socket.AF_INET6 if both else socket.AF_INET,
                backlog=256,
                dualstack_ipv6=both,
            )
        except OSError as error:
            raise ConfigurationError(
                f"the rendezvous cannot listen at port {port} of this machine: {error.strerror}. Free that port, "
                "or choose another one on all machines with TRIREME_RENDEZVOUS=HOST:PORT"
            ) from error
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._listener)
        bound: int = self._listener.getsockname()[1]
        return bound

    def connect(self, host: str, port: int, now_s: float) -> int:
        """Begins to connect; the connection's number. It becomes `Opened`, or `Ended`."""
        self._last += 1
        try:
            # Asked each time: who replaces a lost agent may have another address under the same name.
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self._happened.append(Ended(self._last, f"{host} cannot be found: {reason}", False))
            return self._last
        self._begin(self._last, [(family, address) for family, _, _, _, address in found], now_s)
        return self._last

    def send(self, number: int, message: Message) -> None:
        """Sends a message, unless the connection has ended meanwhile."""
        connection = self._connections.get(number)
        if connection is not None and not connection.is_closing:
            connection.channel.send(encode(message))
            self._write(number, connection)

    def close(self, number: int) -> None:
        """Ends a connection when what was sent on it has left; nothing more happens on it."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.is_closing = True
            self._write(number, connection)

    def local_host(self, number: int) -> str:
        """The address of this machine that the other end of the connection sees."""
        host: str = self._connections[number].socket.getsockname()[0]
        return host.removeprefix("::ffff:")

    @property
    def is_flushed(self) -> bool:
        """Whether all that was sent has left."""
        return not any(connection.channel.outgoing for connection in self._connections.values())

    def wake(self) -> None:
        """Has `poll` return at once. For other threads."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"!")

    def poll(self, timeout_s: float, now_s: float) -> list[Happening]:
        """What happened, waiting at most `timeout_s` for it."""
        for key, events in self._selector.select(0.0 if self._happened else timeout_s):
            if key.fd == self._wake_read:
                with suppress(BlockingIOError):
                    os.read(self._wake_read, _CHUNK_BYTES)
            elif key.data is self._listener:
                self._accept(now_s)
            else:
                self._serve(key.data, events, now_s)
        self._end_late_ones(now_s)
        happened, self._happened = self._happened, []
        return happened

    def shut_down(self) -> None:
        """Closes everything, at once."""
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()
        if self._listener is not None:
            self._listener.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _begin(self, number: int, addresses: list[tuple[int, tuple[object, ...]]], now_s: float) -> None:
        """Tries the first of the addresses; the others are for when it fails."""
        family, address = addresses[0]
        own = socket.socket(family, socket.SOCK_STREAM)
        own.setblocking(False)
        self._add(number, own, now_s, is_server=False)
        connection = self._connections[number]
        connection.is_connecting, connection.addresses = True, addresses[1:]
        try:
            own.connect(address)
        except BlockingIOError:
            self._watch(connection, number)
        except OSError as error:
            self._fail_to_connect(number, connection, error.strerror or str(error), now_s)
        else:
            self._watch(connection, number)

    def _fail_to_connect(self, number: int, connection: _Connection, reason: str, now_s: float) -> None:
        self._remove(number, connection)
        if connection.addresses:
            self._begin(number, connection.addresses, now_s)
        else:
            self._happened.append(Ended(number, reason, False))

    def _accept(self, now_s: float) -> None:
        assert self._listener is not None
        with suppress(OSError):
            accepted, _ = self._listener.accept()
            accepted.setblocking(False)
            strangers = [one for one in self._connections.items() if not one[1].channel.is_open]
            if len(strangers) >= _MAX_STRANGERS:
                self._end(*strangers[0], "too many connections of strangers")
            self._last += 1
            self._add(self._last, accepted, now_s, is_server=True)
            self._write(self._last, self._connections[self._last])

    def _add(self, number: int, own: socket.socket, now_s: float, is_server: bool) -> None:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[number] = _Connection(own, Channel(self._key, is_server), now_s, is_server)
        self._selector.register(own, selectors.EVENT_READ, number)

    def _serve(self, number: int, events: int, now_s: float) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return
        if connection.is_connecting:
            error = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._fail_to_connect(number, connection, os.strerror(error), now_s)
                return
            connection.is_connecting = False
        if events & selectors.EVENT_READ:
            self._read(number, connection)
        if number in self._connections:
            self._write(number, connection)

    def _read(self, number: int, connection: _Connection) -> None:
        was_open = connection.channel.is_open
        try:
            data = connection.socket.recv(_CHUNK_BYTES)
            if not data:
                raise ConnectionResetError(None, self._farewell(was_open))
            messages = [decode(payload) for payload in connection.channel.receive(data)]
        except BlockingIOError:
            return
        except OSError as error:
            self._end(number, connection, error.strerror or str(error))
            return
        except ProtocolError as error:
            self._end(number, connection, str(error))
            return
        if connection.is_closing:
            return
        if connection.channel.is_open and not was_open:
            self._happened.append(Opened(number))
        self._happened += [Arrived(number, message) for message in messages]

    def _farewell(self, was_open: bool) -> str:
        if was_open:
            return "it closed the connection"
        return "it hung up on us: it is about to end, or it has another TRIREME_TOKEN or TRIREME_RUN_ID"

    def _write(self, number: int, connection: _Connection) -> None:
        outgoing = connection.channel.outgoing
        try:
            while outgoing and not connection.is_connecting:
                del outgoing[: connection.socket.send(outgoing)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(number, connection, error.strerror or str(error))
            return
        if connection.is_closing and not outgoing:
            self._remove(number, connection)
        else:
            self._watch(connection, number)

    def _watch(self, connection: _Connection, number: int) -> None:
        is_writing = connection.is_connecting or bool(connection.channel.outgoing)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_writing else 0)
        self._selector.modify(connection.socket, events, number)

    def _end_late_ones(self, now_s: float) -> None:
        for number, connection in list(self._connections.items()):
            if not connection.channel.is_open and now_s - connection.began_s > PROOF_WITHIN_S:
                if connection.is_connecting:
                    self._fail_to_connect(number, connection, "no answer", now_s)
                else:
                    self._end(number, connection, "it does not say who it is")

    def _end(self, number: int, connection: _Connection, reason: str) -> None:
        self._remove(number, connection)
        if not connection.is_closing:
            self._happened.append(Ended(number, reason, connection.channel.is_open))

    def _remove(self, number: int, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        del self._connections[number]
