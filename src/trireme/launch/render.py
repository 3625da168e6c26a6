"""From a job to the command and the environment of each of its workers: values in, values out."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trireme.cluster.cluster import LOCAL_RANK, NUM_LOCAL_WORKERS, Cluster
from trireme.cluster.machine import CUDA_VISIBLE_DEVICES, KERAS_BACKEND, XLA_FLAGS, num_virtual_devices
from trireme.launch.job import Job
from trireme.launch.variables import (
    BACKEND,
    BACKUP,
    BACKUP_EVERY,
    FAILURE_FILE,
    GENERATION,
    LAUNCHER,
    LOG_DIR,
    OF_ONE_WORKER,
    PORT_FD,
    RELAUNCHED,
    SEED,
    TIMEOUT_S,
)

LOOPBACK = "127.0.0.1"
WORKER, SERVER = "worker", "server"
SERVER_ENTRY = "trireme.launch.server_process"

OMP_NUM_THREADS = "OMP_NUM_THREADS"
TF_NUM_INTRAOP_THREADS = "TF_NUM_INTRAOP_THREADS"
TF_NUM_INTEROP_THREADS = "TF_NUM_INTEROP_THREADS"
TF_CPP_MIN_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
JAX_PLATFORMS = "JAX_PLATFORMS"
# Read by XLA for the size of its CPU thread pools.
NPROC = "NPROC"


@dataclass(frozen=True)
class WorkerSpec:
    """One worker process to start: its command, its whole environment, the descriptors it inherits."""

    rank: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    fds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Port:
    """A port reserved for one worker: its number, and the descriptor of a socket that keeps it until used."""

    number: int
    fd: int


@dataclass(frozen=True)
class Provisions:
    """What a launcher has at hand for the workers of one run.

    Attributes:
        log_dir: folder for logs and failure files.
        launcher_pid: the process that starts the workers; without it they end.
        fds: by the name of their variable, descriptors that all workers inherit.
        ports: one for each worker of a run of several that are all on this machine; else none.
        server_ports: one for each parameter server that is started here.
        secrets: by role, variables that only processes of that role have.
    """

    log_dir: str
    launcher_pid: int = 0
    fds: Mapping[str, int] = field(default_factory=dict)
    ports: Sequence[Port] = ()
    server_ports: Sequence[Port] = ()
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)


def render(job: Job, provisions: Provisions) -> list[WorkerSpec]:
    """The worker processes of a job, in rank order."""
    return [_spec(job, rank, provisions) for rank in job.ranks]


def render_servers(job: Job, provisions: Provisions) -> list[WorkerSpec]:
    """The parameter servers of a job, in rank order."""
    return [_server_spec(job, rank, provisions) for rank in range(job.num_servers)]


def log_file(log_dir: str, rank: int, role: str = WORKER) -> str:
    """Where the output of a worker, or of a server, goes."""
    return os.path.join(log_dir, f"{role}-{rank}.log")


def failure_file(log_dir: str, rank: int, role: str = WORKER) -> str:
    """Where a worker, or a server, leaves what it failed of."""
    return os.path.join(log_dir, f"{role}-{rank}.failure.json")


def stacks_file(log_dir: str, rank: int, role: str = WORKER) -> str:
    """Where a worker, or a server, that is asked to shows the Python stacks of its threads."""
    return os.path.join(log_dir, f"{role}-{rank}.stacks")


def cluster_of(job: Job, provisions: Provisions, rank: int) -> Cluster:
    """The cluster as one of the workers started here sees it."""
    if job.cluster is not None:
        seen = job.cluster if rank == job.cluster.rank else job.cluster.at(rank)
        # With servers, which others start, the name must be the one that they know, which may be none.
        return replace(seen, run_id=seen.run_id or ("" if seen.servers else job.run_id))
    numbers = [port.number for port in provisions.ports] or [0]
    return Cluster(
        workers=tuple(f"{LOOPBACK}:{number}" for number in numbers),
        servers=tuple(f"{LOOPBACK}:{port.number}" for port in provisions.server_ports),
        rank=rank,
        replicas_per_worker=job.replicas_per_worker,
        run_id=job.run_id,
        source="trireme",
    )


def _spec(job: Job, rank: int, provisions: Provisions) -> WorkerSpec:
    fds = dict(provisions.fds)
    # With servers, workers listen to nobody, and may be started again when the sockets are closed.
    if provisions.ports and not job.num_servers:
        fds[PORT_FD] = provisions.ports[rank - job.ranks.start].fd
    return WorkerSpec(rank, _argv(job), _environ(job, rank, provisions, fds), tuple(fds.values()))


def _server_spec(job: Job, rank: int, provisions: Provisions) -> WorkerSpec:
    seen_by_worker = _environ(job, 0, provisions, {}, secrets_of=SERVER)
    cluster = cluster_of(job, provisions, 0).at(rank, SERVER)
    environ = {
        **seen_by_worker,
        **cluster.to_environ(),
        # Servers compute on the CPU, beside the workers.
        CUDA_VISIBLE_DEVICES: "-1",
        JAX_PLATFORMS: "cpu",
        FAILURE_FILE: failure_file(provisions.log_dir, rank, SERVER),
    }
    # What the launcher knows of a worker's place, a server has not.
    environ = {name: value for name, value in environ.items() if name not in (LOCAL_RANK, NUM_LOCAL_WORKERS)}
    return WorkerSpec(rank, (sys.executable, *job.flags, "-P", "-m", SERVER_ENTRY), environ)


def _argv(job: Job) -> tuple[str, ...]:
    options = [] if job.strategy is None else [f"--strategy={job.strategy}"]
    options += ["--safe-path"] if job.is_path_safe else []
    # With -P a file of the user's that is called like one of the modules of our start-up stays out of its way.
    return (
        sys.executable, *job.flags, "-P", "-m", job.entry, *options, job.kind, job.target, *job.arguments
    )  # fmt: skip


def _environ(
    job: Job, rank: int, provisions: Provisions, fds: Mapping[str, int], secrets_of: str = WORKER
) -> dict[str, str]:
    cluster = cluster_of(job, provisions, rank)
    inherited = {name: value for name, value in job.environ.items() if name not in OF_ONE_WORKER}
    return {
        **_defaults(job, cluster),
        **inherited,
        **_devices(job, cluster, inherited),
        **cluster.to_environ(),
        **provisions.secrets.get(secrets_of, {}),
        KERAS_BACKEND: job.backend,
        BACKEND: job.backend,
        SEED: str(job.seed),
        TIMEOUT_S: f"{job.timeout_s:g}",
        LOG_DIR: provisions.log_dir,
        FAILURE_FILE: failure_file(provisions.log_dir, rank),
        RELAUNCHED: "1",
        GENERATION: str(job.generation),
        **_backup(job),
        LAUNCHER: launcher_mark(job, provisions.launcher_pid),
        **{name: str(fd) for name, fd in fds.items()},
    }


def _backup(job: Job) -> dict[str, str]:
    return {} if job.backup is None else {BACKUP: job.backup, BACKUP_EVERY: str(job.backup_every)}


def launcher_mark(job: Job, launcher_pid: int) -> str:
    """The value by which a launcher recognises every process that comes from it."""
    return f"{launcher_pid}.{job.launch_id}"


def _defaults(job: Job, cluster: Cluster) -> dict[str, str]:
    """What the user's own values override."""
    threads = max(1, job.num_cores // _num_neighbours(job, cluster))
    defaults = {
        OMP_NUM_THREADS: str(threads),
        TF_NUM_INTRAOP_THREADS: str(threads),
        # A collective that waits holds one thread, so with a single one a step could not go on beside it.
        TF_NUM_INTEROP_THREADS: str(max(2, threads)),
        TF_CPP_MIN_LOG_LEVEL: "2",
    }
    if job.backend == "jax" and _num_neighbours(job, cluster) > 1:
        defaults[NPROC] = str(max(threads, job.replicas_per_worker))
    return defaults


def _devices(job: Job, cluster: Cluster, inherited: Mapping[str, str]) -> dict[str, str]:
    """Which devices a worker sees: its own share of the GPUs, or a CPU in as many parts as it has replicas."""
    if job.gpus:
        first = cluster.local_rank * job.replicas_per_worker
        # A batch system may show each worker its own devices only, under the same numbers.
        first = first if first + job.replicas_per_worker <= len(job.gpus) else 0
        return {CUDA_VISIBLE_DEVICES: ",".join(job.gpus[first : first + job.replicas_per_worker])}
    if job.backend == "jax" and job.replicas_per_worker > num_virtual_devices(inherited):
        flag = f"--xla_force_host_platform_device_count={job.replicas_per_worker}"
        return {XLA_FLAGS: f"{inherited.get(XLA_FLAGS, '')} {flag}".strip()}
    return {}


def _num_neighbours(job: Job, cluster: Cluster) -> int:
    """How many workers and servers share this machine's cores."""
    return max(job.num_workers, cluster.num_local_workers) + job.num_servers
