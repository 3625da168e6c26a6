"""What a worker knows of one server, and how long it waits for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from trireme.errors import TriremeError
from trireme.parameter_server.messages import Body, Request, Welcome


@dataclass(frozen=True)
class Deadlines:
    """How long a worker waits. `server_s`: for a sign of life from a server. `peers_s`: for an answer that a
    living server withholds because other workers come first. `heartbeat_s`: between two signs of its own."""

    server_s: float = 60.0
    peers_s: float = 600.0
    heartbeat_s: float = 1.0


@dataclass
class Connection:
    """The conversation with one server.

    `open` are the requests without an answer, by number; `answers` those that a caller will fetch. `num_applied`
    pushes are part of the server's weights as far as is known, `last_number` is that of the last request.
    """

    address: str
    open: dict[int, Request] = field(default_factory=dict)
    answers: dict[int, Body] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)
    last_number: int = 0
    welcome: Welcome | None = None
    is_greeted: bool = False
    holds_variables: bool = False
    num_applied: int = 0
    heard_s: float = 0.0
    spoke_s: float = float("-inf")
    repeated_s: float = float("-inf")
    waiting_for: tuple[int, ...] = ()
    failure: TriremeError | None = None
    lost_updates: int = 0
