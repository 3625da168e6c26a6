"""The asynchronous machinery: parameter servers that own the variables, and the workers' side of them.

No framework is inside. A server process calls `serve` with an `Updater`; a worker makes a `Placement` with
`place`, and talks to the servers through a `Client`. What users choose by loads at once; the rest needs numpy and
loads when it is used.
"""

from typing import TYPE_CHECKING, Any

from trireme.parameter_server.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
    VariableSpec,
)
from trireme.parameter_server.rules import TOLD_BY_WORKERS, Rules

if TYPE_CHECKING:
    from trireme.parameter_server.client import Client, ClientStatistics
    from trireme.parameter_server.connection import Deadlines
    from trireme.parameter_server.dtypes import dtype_of
    from trireme.parameter_server.gradients import Gradient, RowGradient, merge_duplicate_rows
    from trireme.parameter_server.keys import ServerKeys, WorkerKeys, make_keys
    from trireme.parameter_server.partition import Placement, Slice, place
    from trireme.parameter_server.pulls import PendingPull
    from trireme.parameter_server.saver import Saver
    from trireme.parameter_server.server import serve
    from trireme.parameter_server.shares import Over, Range
    from trireme.parameter_server.updater import Updater

_MODULE_OF = {
    "Client": "client",
    "ClientStatistics": "client",
    "Deadlines": "connection",
    "Gradient": "gradients",
    "Over": "shares",
    "PendingPull": "pulls",
    "Placement": "partition",
    "Range": "shares",
    "RowGradient": "gradients",
    "Saver": "saver",
    "ServerKeys": "keys",
    "Slice": "partition",
    "Updater": "updater",
    "WorkerKeys": "keys",
    "dtype_of": "dtypes",
    "make_keys": "keys",
    "merge_duplicate_rows": "gradients",
    "place": "partition",
    "serve": "server",
}

__all__ = [
    "TOLD_BY_WORKERS",
    "Client",
    "ClientStatistics",
    "Deadlines",
    "FixedShardsPartitioner",
    "Gradient",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Over",
    "Partitioner",
    "PendingPull",
    "Placement",
    "Range",
    "RowGradient",
    "Rules",
    "Saver",
    "ServerKeys",
    "Slice",
    "Updater",
    "VariableSpec",
    "WorkerKeys",
    "dtype_of",
    "make_keys",
    "merge_duplicate_rows",
    "place",
    "serve",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
