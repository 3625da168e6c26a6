"""The protocol: everything a worker may say to a server, and every answer.

Each message is a frozen value. A worker numbers its requests to a server 1, 2, 3, ...; an answer carries the number
of its request. A server takes requests in their order only, and refuses one after a gap. Unanswered requests may
be sent again with the same number: handling one twice changes nothing. `Hello` and `Heartbeat` stand outside: they
carry the number of the request before them.

`step` counts the updates of one worker: its push number `step` is the gradient of its step `step`, so the
next step of a worker is also the number of pushes that were made before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from trireme.parameter_server.gradients import Gradient
from trireme.parameter_server.partition import Slice

Arrays: TypeAlias = Mapping[str, Gradient]


@dataclass(frozen=True)
class Sender:
    """Who speaks: a worker's rank, and a name for this life of its process; later lives have greater names."""

    worker: int
    session: str


@dataclass(frozen=True)
class Body:
    """Base of all message contents; `kind` names them on the wire."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Hello(Body):
    """First words on every connection. `first_number` is that of the oldest request without an answer, `answered`
    are later ones that have theirs. `step` is None for a process that has not trained yet, else the oldest step
    that it can still push. `placement` is the placement's fingerprint. `max_staleness` counts where the server's
    rules leave it to the workers."""

    kind = "hello"
    run_id: str
    placement: str
    first_number: int
    answered: tuple[int, ...] = ()
    step: int | None = None
    idle_epoch: int | None = None
    max_staleness: int | None = None


@dataclass(frozen=True)
class Ready(Body):
    """The next push will be that of `step`; the worker is not idle."""

    kind = "ready"
    step: int


@dataclass(frozen=True)
class Create(Body):
    """Variables, with values or initializers; `is_last` when the server has them all with this one.

    `settings` go to the updater as they are.
    """

    kind = "create"
    slices: tuple[Slice, ...]
    is_last: bool
    settings: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Configure(Body):
    """New settings for the updater, such as a learning rate."""

    kind = "configure"
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Assign(Body):
    """New values for whole slices, which are no step of the optimizer. The workers must be between two epochs."""

    kind = "assign"
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Push(Body):
    """The gradients of one step. `version` is the version of the weights that they were computed with."""

    kind = "push"
    step: int
    epoch: int
    weight: float
    version: int
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Pull(Body):
    """Asks for the values of whole `slices` and, in `arrays`, of some rows (integers) of others."""

    kind = "pull"
    slices: tuple[str, ...] = ()
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class NextRange(Body):
    """Asks for rows to train on; the epoch has `num_rows`, handed out in multiples of `batch_rows`.

    Without rows left, a worker that `is_idle` gets its answer when there are some again or the epoch is over;
    another one gets an unused `Done` at once, so that it can first tell all servers that it is idle. Only a worker
    that `may_open` begins an epoch; the others' answers wait for that, and in lock step their pushes are waited for
    from its first step on. `what` says in words what the rows
    are for: all that share an epoch must agree.
    """

    kind = "next_range"
    epoch: int
    num_rows: int
    batch_rows: int
    is_idle: bool
    may_open: bool = True
    what: str = ""


@dataclass(frozen=True)
class Gather(Body):
    """Answered when all other workers that are here wait for `epoch` to begin: they have done with all before it."""

    kind = "gather"
    epoch: int


@dataclass(frozen=True)
class RangeDone(Body):
    """The rows of a range are trained on; `arrays` (float) are added to the epoch's totals."""

    kind = "range_done"
    epoch: int
    range_id: int
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Idle(Body):
    """The worker has no rows left in `epoch`: nobody needs to wait for its pushes of that epoch."""

    kind = "idle"
    epoch: int


@dataclass(frozen=True)
class Heartbeat(Body):
    kind = "heartbeat"


@dataclass(frozen=True)
class TakeSnapshot(Body):
    kind = "take_snapshot"


@dataclass(frozen=True)
class Bye(Body):
    """The worker has finished its work and will not come back."""

    kind = "bye"


@dataclass(frozen=True)
class Welcome(Body):
    """`step` is where the workers are: a new process begins there. Of the pushes of this process, those before
    `lacks_from` are here, `num_applied` of them. `boot` is a random name for this life of the server, `epoch` the
    one that rows are handed out of."""

    kind = "welcome"
    boot: str
    step: int
    lacks_from: int
    num_applied: int
    is_initialised: bool
    version: int
    epoch: int


@dataclass(frozen=True)
class Applied(Body):
    """The push of `step` is part of the weights since `version`, having missed `staleness` updates."""

    kind = "applied"
    step: int
    version: int
    staleness: int


@dataclass(frozen=True)
class Values(Body):
    kind = "values"
    version: int
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class RangeGranted(Body):
    """Rows `start` to `stop`; `step` is where the worker's pushes go on if it was idle."""

    kind = "range_granted"
    epoch: int
    range_id: int
    start: int
    stop: int
    step: int


@dataclass(frozen=True)
class EpochOver(Body):
    """Every row was counted once; `arrays` are the totals, `step` is where everybody's pushes go on."""

    kind = "epoch_over"
    epoch: int
    step: int
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Done(Body):
    """The request was carried out; `is_used` is False when it came too late to matter."""

    kind = "done"
    is_used: bool = True


@dataclass(frozen=True)
class Alive(Body):
    """Answer to a heartbeat: the requests that are still open, and the workers that they wait for."""

    kind = "alive"
    boot: str
    pending: tuple[int, ...]
    waiting_for: tuple[int, ...]


@dataclass(frozen=True)
class Refused(Body):
    """`code` is one of the words in `REFUSALS`; `text` is for people."""

    kind = "refused"
    code: str
    text: str


REFUSALS = ("hello_first", "superseded", "out_of_turn", "invalid", "protocol")

REQUESTS: dict[str, type[Body]] = {
    body.kind: body
    for body in (
        Hello, Ready, Create, Configure, Assign, Push, Pull, NextRange, Gather, RangeDone, Idle,
        Heartbeat, TakeSnapshot, Bye,
    )
}  # fmt: skip
ANSWERS: dict[str, type[Body]] = {
    body.kind: body
    for body in (Welcome, Applied, Values, RangeGranted, EpochOver, Done, Alive, Refused)
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    sender: Sender
    number: int
    body: Body


@dataclass(frozen=True)
class Answer:
    number: int
    body: Body
