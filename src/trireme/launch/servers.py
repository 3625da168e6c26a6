"""The parameter servers of a run on this machine: their keys and ports, their start, and their end."""

import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from trireme.cluster.board import RUNNING, Entry
from trireme.launch.failure_file import Failure
from trireme.launch.job import Job
from trireme.launch.processes import WorkerProcess, start
from trireme.launch.render import (
    LOOPBACK,
    SERVER,
    WORKER,
    Port,
    Provisions,
    WorkerSpec,
    log_file,
    render_servers,
)
from trireme.launch.revival import Revival
from trireme.launch.variables import SERVER_SOCKETS, SNAPSHOTS

_LOOK_AGAIN_S = 0.02


class Servers:
    """The parameter servers that a launcher starts; without any, every method does nothing.

    Attributes:
        ports: one for each server, kept for it also while it is started again.
        secrets: what `Provisions.secrets` is to hold.
    """

    def __init__(self, job: Job, ports: Sequence[Port], secrets: Mapping[str, Mapping[str, str]]) -> None:
        self.ports = ports
        self.secrets = secrets
        self._job = job
        self._specs: list[WorkerSpec] = []
        self._processes: list[WorkerProcess] = []
        self._log_dir = ""

    def start(self, provisions: Provisions) -> None:
        """Starts all of them."""
        self._log_dir = provisions.log_dir
        self._specs = render_servers(self._job, provisions)
        self._processes = [self._start(spec) for spec in self._specs]

    def pids(self) -> list[int]:
        """Their process ids."""
        return [process.pid for process in self._processes]

    def failures(self, revival: Revival) -> list[Failure]:
        """How they failed, but for those that `revival` has started again."""
        for process in self._processes:
            process.view(Entry(process.rank, process.pid, None, RUNNING, 0.0))
        revival.revive(self._processes, lambda process: self._start(self._specs[process.rank]))
        return [process.failure for process in self._processes if process.failure is not None]

    def end(self) -> None:
        """Ends those that have not ended with the last worker; they may save what they have."""
        for process in self._processes:
            process.send(signal.SIGTERM)
            # One that is stopped would not hear it.
            process.send(signal.SIGCONT)
        give_up = time.monotonic() + (self._job.grace_s if self._processes else 0)
        while time.monotonic() < give_up and any(p.look_for_end() is None for p in self._processes):
            time.sleep(_LOOK_AGAIN_S)
        for process in self._processes:
            process.send_to_group(signal.SIGKILL)
            process.reap()

    def _start(self, spec: WorkerSpec) -> WorkerProcess:
        return start(spec, log_file(self._log_dir, spec.rank, SERVER), None, SERVER)


@contextmanager
def servers_of(job: Job) -> Iterator[Servers]:
    """The parameter servers of a job, not yet started. What they share with the workers is gone afterwards."""
    if not job.num_servers:
        yield Servers(job, (), {})
        return
    from trireme.parameter_server.keys import make_keys

    server_keys, worker_keys = make_keys()
    # Not in the log folder: paths of sockets must be short, and nobody else may enter.
    folder = tempfile.mkdtemp(prefix="trireme-servers-")
    sockets = [_reserved() for _ in range(job.num_servers)]
    ports = [Port(reserved.getsockname()[1], reserved.fileno()) for reserved in sockets]
    common = {SERVER_SOCKETS: folder}
    snapshots = job.environ.get(SNAPSHOTS) or os.path.join(folder, "snapshots")
    secrets = {
        SERVER: {**common, **server_keys.to_environ(), SNAPSHOTS: snapshots},
        WORKER: {**common, **worker_keys.to_environ()},
    }
    try:
        yield Servers(job, ports, secrets)
    finally:
        for reserved in sockets:
            reserved.close()
        shutil.rmtree(folder, ignore_errors=True)


def _reserved() -> socket.socket:
    """A port that a server may bind, again and again, while nobody else is given it."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind((LOOPBACK, 0))
    return keeper
