"""Frames over ZeroMQ: a ROUTER socket at each server, a DEALER socket per server at each worker.

Both sides meet the rest of the code in one method, `Wire.exchange` (and `close`): a test replaces the network by
an object that has it.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from trireme.errors import ConfigurationError, UsageError
from trireme.parameter_server.keys import ServerKeys, WorkerKeys, import_zmq
from trireme.parameter_server.wire_format import Frame, Limits

Letter: TypeAlias = "tuple[Any, Sequence[Frame]]"
PathLike: TypeAlias = "str | os.PathLike[str]"

_MAX_LETTERS_AT_ONCE = 64
_QUEUE_LETTERS = 1000
_RECONNECT_MS = 100
_RECONNECT_MAX_MS = 1000
_KEEPALIVE_MS = 5000
_KEEPALIVE_TIMEOUT_MS = 20000
_log = logging.getLogger(__name__)


class Wire(Protocol):
    """A letter is `(peer, frames)`: for a worker, a peer is the index of a server; for a server, an opaque
    handle that is good for answers. Letters between two peers arrive in order, or not at all."""

    def exchange(self, outgoing: Sequence[Letter], timeout_s: float) -> list[Letter]:
        """Sends `outgoing`, then gives what arrives, waiting at most `timeout_s` for the first letter."""

    def close(self) -> None:
        """Lets the network go."""


class ServerWire:
    """A server's socket, bound to `address` ("host:port"; port 0 takes a free one, see `address`).

    Without keys it listens on loopback only. With keys, who does not have the workers' secret key is turned
    away before a byte of a message is looked at. In `socket_directory`, which nobody else may enter, it also
    listens on a Unix socket for the workers of this machine: encrypting for them would cost most of the speed.
    """

    def __init__(
        self,
        address: str,
        keys: ServerKeys | None,
        limits: Limits | None = None,
        socket_directory: PathLike | None = None,
    ) -> None:
        zmq = import_zmq()
        host, port = _split(address)
        numeric = _resolve(host, address)
        if keys is None and not ipaddress.ip_address(numeric).is_loopback:
            raise ConfigurationError(
                f"a parameter server without keys must not listen on {address}, where others can reach it: "
                "give it the keys of make_keys(), as `trireme run` does"
            )
        self._zmq = zmq
        self._context = zmq.Context()
        self._authenticator = keys and _authenticator(self._context, keys.worker_public)
        self._socket = self._context.socket(zmq.ROUTER)
        _set_options(zmq, self._socket, limits or Limits())
        try:
            if keys:
                self._socket.curve_server = True
                self._socket.curve_secretkey = keys.server_secret.encode()
            self._socket.bind(f"{_tcp(numeric)}:{port or '*'}")
            bound_port = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
            if socket_directory is not None:
                # What was bound before keeps its keys: options count for the endpoints that follow.
                self._socket.curve_server = False
                self._socket.bind(_unix_endpoint(socket_directory, bound_port))
        except zmq.ZMQError as error:
            self.close()
            raise ConfigurationError(f"a parameter server cannot listen on {address}: {error}") from error
        except ConfigurationError:
            self.close()
            raise
        self.address = f"{address.rpartition(':')[0]}:{bound_port}"

    def exchange(self, outgoing: Sequence[Letter], timeout_s: float) -> list[Letter]:
        """See `Wire`. A letter to a peer that is gone, or that does not read, is dropped."""
        for peer, frames in outgoing:
            self._socket.send_multipart([peer, *frames], copy=False)
        if not self._socket.poll(timeout_s * 1000):
            return []
        letters: list[Letter] = []
        while len(letters) < _MAX_LETTERS_AT_ONCE:
            received = _receive(self._zmq, self._socket)
            if received is None:
                break
            letters.append((bytes(received[0]), received[1:]))
        return letters

    def close(self) -> None:
        """Sends what is on its way for at most a second, then lets the port go."""
        self._socket.close(linger=1000)
        if self._authenticator:
            self._authenticator.stop()
        self._context.term()


class WorkerWire:
    """A worker's sockets, one for each of the servers at `addresses`; they reconnect by themselves.

    Servers on loopback are met in `socket_directory`, if that is what they were given too.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        keys: WorkerKeys | None,
        limits: Limits | None = None,
        socket_directory: PathLike | None = None,
    ) -> None:
        zmq = import_zmq()
        self._zmq = zmq
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._sockets = []
        for address in addresses:
            host, port = _split(address)
            connection = self._context.socket(zmq.DEALER)
            self._sockets.append(connection)
            self._poller.register(connection, zmq.POLLIN)
            _set_options(zmq, connection, limits or Limits())
            if socket_directory is not None and _is_loopback(host):
                connection.connect(_unix_endpoint(socket_directory, port))
                continue
            if keys:
                connection.curve_serverkey = keys.server_public.encode()
                connection.curve_publickey = keys.worker_public.encode()
                connection.curve_secretkey = keys.worker_secret.encode()
            connection.connect(f"{_tcp(host)}:{port}")
        self._index = {connection: index for index, connection in enumerate(self._sockets)}

    def exchange(self, outgoing: Sequence[Letter], timeout_s: float) -> list[Letter]:
        """See `Wire`. A letter to a server whose queue is full is dropped."""
        for server, frames in outgoing:
            try:
                self._sockets[server].send_multipart(list(frames), flags=self._zmq.NOBLOCK, copy=False)
            except self._zmq.Again:
                _log.debug("dropped a message to server %d: %d are queued", server, _QUEUE_LETTERS)
        letters: list[Letter] = []
        for connection, _ in self._poller.poll(timeout_s * 1000):
            while (received := _receive(self._zmq, connection)) is not None:
                letters.append((self._index[connection], received))
        return letters

    def close(self) -> None:
        """Drops what is still on its way."""
        self._context.destroy(linger=0)


def _receive(zmq: Any, connection: Any) -> list[memoryview] | None:
    try:
        return [frame.buffer for frame in connection.recv_multipart(flags=zmq.NOBLOCK, copy=False)]
    except zmq.Again:
        return None


def _set_options(zmq: Any, connection: Any, limits: Limits) -> None:
    connection.setsockopt(zmq.IPV6, 1)
    connection.setsockopt(zmq.LINGER, 0)
    connection.setsockopt(zmq.SNDHWM, _QUEUE_LETTERS)
    connection.setsockopt(zmq.RCVHWM, _QUEUE_LETTERS)
    connection.setsockopt(zmq.MAXMSGSIZE, limits.frame_bytes)
    connection.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    connection.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
    # Finds connections whose other end vanished without a word, so that a new one can be made.
    connection.setsockopt(zmq.HEARTBEAT_IVL, _KEEPALIVE_MS)
    connection.setsockopt(zmq.HEARTBEAT_TIMEOUT, _KEEPALIVE_TIMEOUT_MS)


def _authenticator(context: Any, worker_public: str) -> Any:
    from zmq.auth.thread import ThreadAuthenticator

    class _OnlyWorkers:
        def callback(self, domain: str, key: bytes) -> bool:
            return key == worker_public.encode()

    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(domain="*", credentials_provider=_OnlyWorkers())
    return authenticator


def _tcp(host: str) -> str:
    return f"tcp://[{host}]" if ":" in host else f"tcp://{host}"


def _unix_endpoint(directory: PathLike, port: int | str) -> str:
    mode = Path(directory).stat().st_mode
    if mode & 0o077:
        raise ConfigurationError(
            f"others may enter {os.fspath(directory)} (mode {mode & 0o777:o}), where the sockets of the parameter "
            f"servers are to be: chmod 700 {os.fspath(directory)}"
        )
    return f"ipc://{Path(directory).absolute() / f'server-{port}'}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"the address of a parameter server must be host:port, got {address!r}")
    return host.strip("[]"), int(port)


def _resolve(host: str, address: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigurationError(
            f"the host of the parameter server address {address} is unknown: {error}"
        ) from error
