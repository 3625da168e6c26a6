"""The first module of every worker: starts the backend, then runs the user's program, then stops the backend."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext

from trireme.cluster.cluster import Cluster
from trireme.cluster.resolve import resolve
from trireme.launch.target import run_target
from trireme.launch.variables import BACKEND, FAULTS
from trireme.launch.worker_process import Arguments, begin_user_code, main


def work() -> None:
    """A worker from the start of its backend's runtime to the meeting of all workers at the end."""
    # The framework comes in here and not with this module: threads and devices are set by now, and a
    # failing import is told like every other failure.
    from trireme.backends import load

    arguments = Arguments.parse(sys.argv[1:])
    backend = load(os.environ[BACKEND])
    cluster = resolve(os.environ)
    backend.start(_meeting(cluster))
    from trireme.backends import scope

    scope.tell_if_forgotten(backend.cluster)
    if os.environ.get(FAULTS):
        from trireme.testing.faults import install_from_environ

        install_from_environ(backend.cluster.num_workers, backend.cluster.rank)
    begin_user_code()
    with _scope(arguments.strategy or _default_strategy(backend.cluster, cluster)):
        run_target(arguments.target)
    # Only here: a worker that failed must not wait for the others.
    backend.stop()


def _default_strategy(meeting: Cluster, cluster: Cluster) -> str | None:
    """What a script without a strategy runs in: plain Keras, which is followed and backed up like the others."""
    return "one_device" if meeting.num_replicas == 1 and not cluster.servers else None


def _meeting(cluster: Cluster) -> Cluster:
    """Whom a worker meets in its backend's runtime: with parameter servers nobody, for each goes its own pace."""
    return Cluster(replicas_per_worker=cluster.replicas_per_worker) if cluster.servers else cluster


def _scope(strategy: str | None) -> AbstractContextManager[object]:
    if strategy is None:
        return nullcontext()
    from trireme.strategies import by_name

    return by_name(strategy)().scope()


if __name__ == "__main__":
    main(work)
