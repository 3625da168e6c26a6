"""The first module of every worker: starts the backend, then runs the user's program, then stops the backend."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext

from trireme.cluster.resolve import resolve
from trireme.launch.target import run_target
from trireme.launch.variables import BACKEND
from trireme.launch.worker_process import Arguments, begin_user_code, main


def work() -> None:
    """A worker from the start of its backend's runtime to the meeting of all workers at the end."""
    # The framework comes in here and not with this module: threads and devices are set by now, and a
    # failing import is told like every other failure.
    from trireme.backends import load

    arguments = Arguments.parse(sys.argv[1:])
    backend = load(os.environ[BACKEND])
    backend.start(resolve(os.environ))
    from trireme.backends import scope

    scope.tell_if_forgotten(backend.cluster)
    begin_user_code()
    with _scope(arguments.strategy):
        run_target(arguments.target)
    # Only here: a worker that failed must not wait for the others.
    backend.stop()


def _scope(strategy: str | None) -> AbstractContextManager[object]:
    if strategy is None:
        return nullcontext()
    from trireme.strategies import by_name

    return by_name(strategy)().scope()


if __name__ == "__main__":
    main(work)
