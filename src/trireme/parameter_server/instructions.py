"""What the state of a server tells its loop to do. Instructions are carried out in order, before the next event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from trireme.parameter_server.gradients import Gradient, NDArray
from trireme.parameter_server.messages import Arrays, Body, Create, Sender


@dataclass(frozen=True)
class Reply:
    """Send `body` as the answer to request `number`."""

    to: Sender
    number: int
    body: Body


@dataclass(frozen=True)
class SendValues:
    """Answer request `number` with whole `slices` and with some `rows` of others, as they are at this moment."""

    to: Sender
    number: int
    version: int
    slices: tuple[str, ...]
    rows: Mapping[str, NDArray]


@dataclass(frozen=True)
class Apply:
    """Let the updater change the weights: one step of the optimizer."""

    gradients: Mapping[str, Gradient]


@dataclass(frozen=True)
class CreateSlices:
    """Let the updater make slices."""

    create: Create


@dataclass(frozen=True)
class AssignSlices:
    """Let the updater give slices other values, and save them: no update tells that there is something new."""

    arrays: Arrays


@dataclass(frozen=True)
class Reconfigure:
    """Pass settings on to the updater."""

    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """Append an entry to the journal, before anything that comes after it."""

    entry: Mapping[str, Any]


@dataclass(frozen=True)
class SaveSnapshot:
    """Write a snapshot, then answer."""

    to: Sender
    number: int


@dataclass(frozen=True)
class Report:
    """Tell people."""

    text: str


@dataclass(frozen=True)
class End:
    """All workers are done."""


Instruction: TypeAlias = (
    Reply
    | SendValues
    | Apply
    | CreateSlices
    | AssignSlices
    | Reconfigure
    | Record
    | SaveSnapshot
    | Report
    | End
)
