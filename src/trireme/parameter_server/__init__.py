"""The asynchronous machinery: parameter servers that own the variables, and the workers' side of them.

No framework is inside. A server process calls `serve` with an `Updater`; a worker makes a `Placement` with
`place`, and talks to the servers through a `Client`.
"""

from trireme.parameter_server.client import Client, ClientStatistics
from trireme.parameter_server.connection import Deadlines
from trireme.parameter_server.gradients import Gradient, RowGradient
from trireme.parameter_server.keys import ServerKeys, WorkerKeys, make_keys
from trireme.parameter_server.partition import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Placement,
    Slice,
    VariableSpec,
    place,
)
from trireme.parameter_server.pulls import PendingPull
from trireme.parameter_server.rules import Rules
from trireme.parameter_server.saver import Saver
from trireme.parameter_server.server import serve
from trireme.parameter_server.shares import Over, Range
from trireme.parameter_server.updater import Updater

__all__ = [
    "Client",
    "ClientStatistics",
    "Deadlines",
    "FixedShardsPartitioner",
    "Gradient",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Over",
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
    "make_keys",
    "place",
    "serve",
]
