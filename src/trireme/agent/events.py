"""What happens to the two state machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from trireme.agent.messages import Ending, Message, WorkerState


@dataclass(frozen=True)
class ReceivedFrom:
    """The rendezvous: a message came on one of its connections."""

    connection: int
    message: Message


@dataclass(frozen=True)
class Closed:
    """The rendezvous: one of its connections has ended, and why."""

    connection: int
    reason: str


@dataclass(frozen=True)
class Connected:
    """The agent: it is connected to the rendezvous, and both have proved who they are."""


@dataclass(frozen=True)
class Lost:
    """The agent: the connection, or the attempt to make one, has ended, and why."""

    reason: str


@dataclass(frozen=True)
class Received:
    """The agent: the rendezvous has sent a message."""

    message: Message


@dataclass(frozen=True)
class Prepared:
    """The agent: its next workers will listen at these addresses."""

    addresses: tuple[str, ...]


@dataclass(frozen=True)
class WorkersEnded:
    """The agent: none of its workers is left.

    Attributes:
        ending: how they failed; None when they ended well, or because they were recalled.
        is_recalled: whether they were ended because the agent was told to.
        exit_code: what a signal to the agent makes of it; it ends then.
        report: what the launcher tells about it.
    """

    ending: Ending | None = None
    is_recalled: bool = False
    exit_code: int | None = None
    report: str = ""


@dataclass(frozen=True)
class Interrupted:
    """The agent: a signal came while it had no workers; it ends with this exit code."""

    exit_code: int


@dataclass(frozen=True)
class Tick:
    """Time has passed.

    Attributes:
        workers: where the agent's own workers are.
    """

    workers: tuple[WorkerState, ...] = ()


RendezvousEvent: TypeAlias = ReceivedFrom | Closed | Tick
MemberEvent: TypeAlias = Connected | Lost | Received | Prepared | WorkersEnded | Interrupted | Tick
