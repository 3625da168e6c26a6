"""A line between the referee and one process of a contestant: JSON messages over a local socket."""

import json
import socket
from typing import Any


class LineClosed(Exception):
    """The other side has ended, or did not answer in time."""


class Line:
    """Sends and receives JSON values. Waiting costs no processor time, or it would disturb who has the turn.

    Args:
        connection: a connected stream socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")

    @classmethod
    def to(cls, address: str) -> "Line":
        """Connects to the socket whose path is `address`."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address)
        return cls(connection)

    def send(self, value: Any) -> None:
        """Sends one JSON value."""
        try:
            self._connection.sendall(json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise LineClosed(f"could not send {value!r}: {error}") from error

    def receive(self, timeout_s: float | None = None) -> Any:
        """Returns the next JSON value.

        Args:
            timeout_s: seconds to wait at most. None: as long as the other side lives.

        Raises:
            LineClosed: nothing came.
        """
        self._connection.settimeout(timeout_s)
        try:
            line = self._lines.readline()
        except OSError as error:
            raise LineClosed(f"no message within {timeout_s} s: {error}") from error
        if not line:
            raise LineClosed("the other side ended")
        return json.loads(line)

    def close(self) -> None:
        """Ends the line; the other side's `receive` raises `LineClosed`."""
        self._lines.close()
        self._connection.close()
