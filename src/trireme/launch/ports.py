"""Ports that nobody else gets until the workers that they are meant for listen there."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from types import TracebackType

from trireme.launch.render import Port


class ReservedPorts:
    """Free ports, each kept by a socket for a worker to inherit.

    To be closed when the workers have inherited the sockets: one that has begun to use its port must be the
    last to hold it.

    Attributes:
        ports: one for each worker.
    """

    def __init__(self, count: int) -> None:
        self.ports: list[Port] = []
        with ExitStack() as stack:
            for _ in range(count):
                reserved = stack.enter_context(socket.socket())
                # On all addresses, as the runtimes will: free on one says nothing about the others.
                reserved.bind(("", 0))
                self.ports.append(Port(reserved.getsockname()[1], reserved.fileno()))
            self._sockets = stack.pop_all()

    def close(self) -> None:
        self._sockets.close()

    def __enter__(self) -> list[Port]:
        return self.ports

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
