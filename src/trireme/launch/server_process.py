"""A parameter server process: `python -m trireme.launch.server_process`, or a call of `serve_parameters`.

Everything it needs is in the environment: the cluster, the keys, where to keep snapshots. What to compute the first
worker tells it.
"""

import os
import sys

from trireme.cluster.resolve import resolve
from trireme.errors import ConfigurationError
from trireme.launch.variables import SERVER_SOCKETS, SNAPSHOT_INTERVAL_S, SNAPSHOTS
from trireme.launch.worker_process import main

DEFAULT_SNAPSHOT_INTERVAL_S = 300.0


def serve_parameters() -> int:
    """Runs this process as the parameter server that the environment says it is, until all workers are done.

    Returns:
        The exit code: 0, or 143 after SIGTERM. In both cases a last snapshot was saved.

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
    saver = Saver(directory, cluster.run_id, cluster.rank, _interval_s()) if directory else None
    return serve(
        cluster.servers[cluster.rank],
        KerasUpdater(),
        rules,
        keys=ServerKeys.from_environ(os.environ),
        saver=saver,
        socket_directory=os.environ.get(SERVER_SOCKETS) or None,
    )


def _interval_s() -> float:
    text = os.environ.get(SNAPSHOT_INTERVAL_S, "")
    try:
        interval_s = float(text) if text else DEFAULT_SNAPSHOT_INTERVAL_S
    except ValueError:
        interval_s = 0.0
    if not 0 < interval_s < float("inf"):
        raise ConfigurationError(f"{SNAPSHOT_INTERVAL_S} is {text!r}: expected seconds, more than 0")
    return interval_s


def _work() -> None:
    code = serve_parameters()
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main(_work)
