"""What agents and the rendezvous say to each other, and how it looks on the wire: a JSON object for each message."""

from __future__ import annotations

import json
import types
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from trireme.agent.record import Record
from trireme.errors import ProtocolError
from trireme.recovery.policy import FailedAttempt


@dataclass(frozen=True)
class Ending:
    """How the workers of one agent ended, when not all of them ended well.

    Attributes:
        attempt: their first failure.
        report: what that agent's launcher tells about it, or the first part of that.
    """

    attempt: FailedAttempt
    report: str = ""


@dataclass(frozen=True)
class WorkerState:
    """Where a worker is: what it posted last on its machine's progress board, and how long ago."""

    rank: int
    step: int | None
    state: str
    for_s: float


@dataclass(frozen=True)
class Join:
    """An agent takes its seat.

    Attributes:
        index: which of the `num_agents` agents it is.
        incarnation: a random name for this life of its process.
        place: where it is, for people.
        seed: what it would start the workers with.
        record: what it knows of the run.
        step: the last step that all its workers had begun in the last generation.
        ending: how they ended then, if nobody has been told yet.
    """

    run_id: str
    index: int
    num_agents: int
    incarnation: str
    place: str
    seed: int
    record: Record
    step: int | None = None
    ending: Ending | None = None


@dataclass(frozen=True)
class Ready:
    """None of the agent's workers is left; the next ones will listen at `addresses`."""

    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """All workers of the agent have ended in this generation: well, if there is no `ending`."""

    generation: int
    ending: Ending | None = None


@dataclass(frozen=True)
class Leaving:
    """The agent was told to end, and will with this exit code."""

    exit_code: int


@dataclass(frozen=True)
class Beat:
    """A sign of life. An agent's has the states of its workers, the rendezvous' answer has none."""

    workers: tuple[WorkerState, ...] = ()


@dataclass(frozen=True)
class Welcome:
    """The agent has its seat; `missing` are still waited for, each in words."""

    missing: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """The agent gets no seat: not yet, or, when this is final, never."""

    reason: str
    is_final: bool = False
    exit_code: int = 0


@dataclass(frozen=True)
class Meet:
    """No workers shall run until the next generation starts."""

    record: Record


@dataclass(frozen=True)
class Start:
    """A generation starts.

    Attributes:
        record: the run, this start included.
        workers: the addresses of all workers, in rank order.
        first_rank: the rank of the agent's first worker.
    """

    record: Record
    workers: tuple[str, ...]
    first_rank: int


@dataclass(frozen=True)
class News:
    """What has happened, for people.

    Attributes:
        text: what follows from it.
        author: the agent that has told its own people about the failure behind it, or None.
        report: what that agent told, for the others.
        wants_stacks: whether only the workers' stacks can tell what happened.
    """

    text: str
    author: int | None = None
    report: str = ""
    wants_stacks: bool = False


@dataclass(frozen=True)
class Stop:
    """The run is over, and the agent ends with this exit code: 0 when all workers ended well."""

    exit_code: int


Message: TypeAlias = Join | Ready | Ended | Leaving | Beat | Welcome | Refused | Meet | Start | News | Stop
_TYPES = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """The message as it travels."""
    return json.dumps({"is": type(message).__name__, **asdict(message)}).encode()


def decode(payload: bytes) -> Message:
    """What `encode` was given.

    Raises:
        ProtocolError: these bytes are no message.
    """
    try:
        values = json.loads(payload)
        message: Message = _read(_TYPES[values.pop("is")], values)
        return message
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(
            f"{payload[:80]!r} is no message of an agent ({error}): are all agents of one version?"
        ) from error


def _read(kind: Any, value: Any) -> Any:
    """The value as one of `kind`, with everything in it checked."""
    if get_origin(kind) in (Union, types.UnionType):
        return None if value is None else _read(get_args(kind)[0], value)
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], item) for item in _checked(list, value))
    if is_dataclass(kind) and isinstance(kind, type):
        hints, names = get_type_hints(kind), {field.name for field in fields(kind)}
        if value.keys() != names:
            raise ValueError(f"{kind.__name__} has {sorted(names)}, not {sorted(value)}")
        return kind(**{name: _read(hints[name], item) for name, item in value.items()})
    if kind is float:
        return float(_checked((int, float), value))
    return _checked(kind, value)


def _checked(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{value!r} is no {getattr(kind, '__name__', 'number')}")
    return value
