"""What the two state machines tell the loop to do. Instructions are carried out in order, before the next event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from trireme.agent.messages import Message


@dataclass(frozen=True)
class SendTo:
    """The rendezvous: send a message on one of its connections."""

    connection: int
    message: Message


@dataclass(frozen=True)
class Drop:
    """The rendezvous: close a connection when what was sent on it has left."""

    connection: int


@dataclass(frozen=True)
class Connect:
    """The agent: begin to connect to the rendezvous."""


@dataclass(frozen=True)
class Disconnect:
    """The agent: close the connection, or give up the attempt to make one."""


@dataclass(frozen=True)
class Send:
    """The agent: send a message to the rendezvous."""

    message: Message


@dataclass(frozen=True)
class Prepare:
    """The agent: get an address for each of its workers, and answer with the event `Prepared`."""


@dataclass(frozen=True)
class StartWorkers:
    """The agent: start its workers, and answer with `WorkersEnded` when none of them is left."""

    generation: int
    seed: int
    workers: tuple[str, ...]
    first_rank: int


@dataclass(frozen=True)
class Recall:
    """The agent: end its workers, and find out first what they are doing if `with_stacks`."""

    with_stacks: bool = False


@dataclass(frozen=True)
class Tell:
    """Tell people."""

    text: str


@dataclass(frozen=True)
class Exit:
    """The agent: end the process with this exit code."""

    exit_code: int


RendezvousInstruction: TypeAlias = SendTo | Drop
MemberInstruction: TypeAlias = Connect | Disconnect | Send | Prepare | StartWorkers | Recall | Tell | Exit
