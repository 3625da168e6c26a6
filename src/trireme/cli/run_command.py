"""What the commands about a run that is in a cluster already have in common: its name, its namespace."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from trireme.launch.kubernetes.objects import RunObjects

_Command = TypeVar("_Command", bound=Callable[..., Any])


def run_arguments(function: _Command) -> _Command:
    """Adds NAME and --namespace to a command."""
    namespace = click.option(
        "--namespace", metavar="NAMESPACE", default="", help="Default: the one kubectl is set to."
    )
    return click.argument("name", metavar="NAME")(namespace(function))


@contextmanager
def run_objects(name: str, namespace: str) -> Iterator["RunObjects"]:
    """The run in the cluster that `kubectl` would talk to."""
    from trireme.launch.kubernetes.connection import connect
    from trireme.launch.kubernetes.objects import RunObjects

    with connect(os.environ) as connection:
        yield RunObjects(connection, name, namespace)
