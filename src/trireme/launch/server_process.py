"""A parameter server process: `python -m trireme.launch.server_process`, or a call of `serve_parameters`.

Everything it needs is in the environment: the cluster, the keys, where to keep snapshots. What to compute the first
worker tells it.
"""

import os
import sys
from collections.abc import Mapping

from trireme.cluster.addresses import join, port_of
from trireme.cluster.cluster import Cluster
from trireme.cluster.resolve import resolve
from trireme.errors import ConfigurationError
from trireme.launch.variables import (
    POD_IP,
    RENDEZVOUS_TIMEOUT_S,
    SERVER_SOCKETS,
    SNAPSHOT_INTERVAL_S,
    SNAPSHOTS,
    duration_s,
)
from trireme.launch.worker_process import main

DEFAULT_SNAPSHOT_INTERVAL_S = 300.0


def serve_parameters() -> int:
    """Runs this process as the parameter server that the environment says it is, until all workers are done.

    Returns:
        The exit code: 0; 143 after SIGTERM; in a pod 75 when no worker was heard for as long as pods wait for each
        other. In all cases a last snapshot was saved.

    Raises:
        ConfigurationError: the environment describes no server, or one that cannot listen.
    """
    from trireme.backends.parameter_server.updater import KerasUpdater
    from trireme.parameter_server import TOLD_BY_WORKERS, Rules, Saver, ServerKeys, serve

    cluster = resolve(os.environ)
    if cluster.role != "server":
        raise ConfigurationError(
            f"{cluster!r} is no parameter server: expected TRIREME_ROLE=server, or a ps task"
        )
    rules = Rules(
        num_workers=cluster.num_workers,
        run_id=cluster.run_id,
        is_chief=cluster.rank == 0,
        max_staleness=TOLD_BY_WORKERS,
    )
    directory = os.environ.get(SNAPSHOTS)
    interval_s = duration_s(os.environ, SNAPSHOT_INTERVAL_S, DEFAULT_SNAPSHOT_INTERVAL_S)
    saver = Saver(directory, cluster.run_id, cluster.rank, interval_s) if directory else None
    return serve(
        _address(cluster, os.environ),
        KerasUpdater(),
        rules,
        keys=ServerKeys.from_environ(os.environ),
        saver=saver,
        socket_directory=os.environ.get(SERVER_SOCKETS) or None,
        on_listening=lambda address: print(
            f"trireme: {cluster.describe()}, listens at {address}", flush=True
        ),
        absence_s=duration_s(os.environ, RENDEZVOUS_TIMEOUT_S, 0)
        if RENDEZVOUS_TIMEOUT_S in os.environ
        else None,
    )


def _address(cluster: Cluster, environ: Mapping[str, str]) -> str:
    """Where this server listens: what others find under its name."""
    address = cluster.servers[cluster.rank]
    return join(environ[POD_IP], port_of(address)) if environ.get(POD_IP) else address


def _work() -> None:
    code = serve_parameters()
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main(_work)
