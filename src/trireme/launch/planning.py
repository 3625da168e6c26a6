"""From what the user asked for to a job: how many workers of how many replicas this machine starts."""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from trireme.cluster import machine as machine_facts
from trireme.cluster.cluster import Cluster
from trireme.cluster.machine import CUDA_VISIBLE_DEVICES, XLA_FLAGS
from trireme.cluster.resolve import resolve
from trireme.launch.command_line import interpreter_flags
from trireme.launch.job import (
    BACKENDS,
    DEFAULT_GRACE_S,
    DEFAULT_TIMEOUT_S,
    EPOCH,
    ONE_DEVICE_BACKENDS,
    SCRIPT,
    Job,
    is_count,
    is_duration,
    refuse,
)
from trireme.launch.variables import RELAUNCHED, SEED, TIMEOUT_S

# The one environment whose processes start workers, while all others are one worker each.
_STARTS_WORKERS = "kubernetes"


@dataclass(frozen=True)
class Machine:
    """What a run can use here.

    Attributes:
        num_cores: CPU cores.
        gpus: names of the GPUs that the backend can use, as in `CUDA_VISIBLE_DEVICES`.
        num_devices: how many devices a run takes when nobody says how many.
    """

    num_cores: int = 1
    gpus: tuple[str, ...] = ()
    num_devices: int = 1


def this_machine(backend: str, environ: Mapping[str, str]) -> Machine:
    """What this machine offers a process with this environment."""
    can_use_gpus = machine_facts.can_use_gpus(backend, environ)
    count = machine_facts.num_gpus(environ) if can_use_gpus else 0
    return Machine(
        num_cores=machine_facts.num_cpu_cores(),
        gpus=_gpu_names(environ, count),
        num_devices=machine_facts.num_local_devices(backend, environ),
    )


def plan(
    target: str,
    arguments: Sequence[str] = (),
    *,
    kind: str = SCRIPT,
    replicas: int | None = None,
    workers: int | None = None,
    servers: int | None = None,
    backend: str | None = None,
    strategy: str | None = None,
    log_dir: str | None = None,
    timeout_s: float | None = None,
    grace_s: float | None = None,
    backup: str | None = None,
    backup_every: int | None = None,
    max_restarts: int | None = None,
    environ: Mapping[str, str] | None = None,
    machine: Machine | None = None,
    found: Sequence[str] = (),
) -> Job:
    """The job that runs `target` on this machine.

    When the environment says that this process is one of several workers (`TF_CONFIG`, Slurm, ...), the
    job has that one worker; in a Kubernetes pod, the pod's workers.

    Args:
        target: the path of a script, the name of a module, or the folder of a pickled call.
        arguments: the target's own arguments.
        kind: which of the three it is: `"script"`, `"module"` or `"call"`.
        replicas: replicas in total on this machine. None: one for each device.
        workers: worker processes. None: one for each replica, with jax one for all of them.
        servers: parameter servers. None: none; then workers train together.
        backend: the Keras backend. None: the one Keras would choose.
        strategy: a strategy to enter around the unchanged target.
        log_dir: folder for the workers' output. None: a fresh temporary one.
        timeout_s: seconds a worker may wait for its peers. None: `TRIREME_TIMEOUT_S`, else 600.
        grace_s: seconds that workers have to save and end after SIGTERM. None: 10.
        backup: where to back up every `fit` that has no backup of its own. None: nowhere.
        backup_every: the steps between two of these backups. None: one after each epoch.
        max_restarts: how often to start the run again when it fails. None: never.
        environ: the environment to start from. None: this process' own.
        machine: what the run can use. None: this machine.
        found: what the caller has already found wrong, to be told together with the rest.

    Raises:
        UsageError: the values cannot work together; the message lists everything wrong.
        ConfigurationError: the environment describes a cluster that contradicts itself.
    """
    environ = dict(os.environ if environ is None else environ)
    backend = backend or machine_facts.keras_backend(environ)
    cluster = surrounding_cluster(environ)
    problems = [
        *found,
        *_target_problems(target, kind),
        *_request_problems(backend, replicas, workers, servers),
        *_cluster_problems(cluster, workers, servers),
        *_recovery_problems(grace_s, backup, backup_every, max_restarts),
    ]
    timeout_s = _timeout_s(timeout_s, environ, problems)
    if _request_problems(backend, replicas, workers, servers):
        refuse(problems)
    machine = machine or this_machine(backend, environ)
    if cluster is not None:
        workers, replicas = _share_of(cluster, backend, replicas)
    backup = backup if backup is None or "://" in backup else os.path.abspath(backup)
    if servers or (cluster is not None and cluster.servers):
        num_workers, per_worker = _asynchronous(replicas, workers, machine, problems)
        if backup is not None:
            problems.append(
                f"--backup {backup} is for workers that train together; with --servers the servers keep snapshots, in "
                "the folder TRIREME_SNAPSHOTS. Leave out --backup"
            )
    else:
        num_workers, per_worker = _split(backend, replicas, workers, machine, problems)
    problems += _device_problems(backend, num_workers, per_worker, machine, environ)
    refuse(problems)
    return Job(
        target=target,
        arguments=tuple(arguments),
        kind=kind,
        backend=backend,
        num_workers=num_workers,
        num_servers=servers or 0,
        replicas_per_worker=per_worker,
        cluster=None if cluster is None else replace(cluster, replicas_per_worker=per_worker),
        strategy=strategy,
        log_dir=log_dir,
        timeout_s=timeout_s,
        grace_s=grace_s or DEFAULT_GRACE_S,
        seed=_seed(environ, cluster, backup),
        max_restarts=max_restarts or 0,
        backup=backup,
        backup_every=backup_every or EPOCH,
        num_cores=machine.num_cores,
        gpus=machine.gpus,
        flags=interpreter_flags(sys.orig_argv),
        is_path_safe=sys.flags.safe_path,
        environ=environ,
    )


def surrounding_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """The cluster that somebody else started this process for, or None when it is on its own.

    A launcher inside a worker of another launcher is on its own: that worker's place is taken.
    """
    if environ.get(RELAUNCHED):
        return None
    cluster = resolve(environ)
    return cluster if cluster.num_workers > 1 or cluster.servers or cluster.role != "worker" else None


def _split(
    backend: str, replicas: int | None, workers: int | None, machine: Machine, problems: list[str]
) -> tuple[int, int]:
    """The number of workers, and of replicas in each; a contradiction is added to `problems`."""
    if backend in ONE_DEVICE_BACKENDS:
        if replicas is not None and workers is not None and replicas != workers:
            problems.append(
                f"--replicas {replicas} and --workers {workers} contradict each other: a {backend} worker "
                f"holds one replica. Leave out --workers"
            )
        return workers or replicas or machine.num_devices, 1
    if workers is None:
        return 1, replicas or machine.num_devices
    if replicas is None:
        return workers, max(1, machine.num_devices // workers)
    if replicas % workers:
        problems.append(
            f"--replicas {replicas} does not divide by --workers {workers}: every worker holds as many "
            f"replicas as the others. Type --replicas {workers * (replicas // workers + 1)}, or leave out "
            "--workers"
        )
    return workers, max(1, replicas // workers)


def _asynchronous(
    replicas: int | None, workers: int | None, machine: Machine, problems: list[str]
) -> tuple[int, int]:
    """As `_split`, with parameter servers: every worker drives one device."""
    if replicas is not None and workers is not None and replicas != workers:
        problems.append(
            f"--replicas {replicas} and --workers {workers} contradict each other: with --servers a worker holds one "
            "replica. Leave out --replicas"
        )
    return workers or replicas or machine.num_devices, 1


def _share_of(cluster: Cluster, backend: str, replicas: int | None) -> tuple[int, int | None]:
    """How many workers, and replicas, of a surrounding cluster are this process' business."""
    workers = cluster.num_local_workers if cluster.source == _STARTS_WORKERS else 1
    if replicas is None and cluster.replicas_per_worker > 1:
        replicas = workers * cluster.replicas_per_worker
    return workers, replicas


def _request_problems(
    backend: str, replicas: int | None, workers: int | None, servers: int | None
) -> list[str]:
    problems = [
        f"{option} {value} is impossible: expected a whole number, 1 or more"
        for option, value in (("--replicas", replicas), ("--workers", workers), ("--servers", servers))
        if value is not None and not is_count(value)
    ]
    if backend not in BACKENDS:
        problems.append(
            f"the backend is {backend!r}: expected KERAS_BACKEND to be one of {', '.join(BACKENDS)}"
        )
    return problems


def _cluster_problems(cluster: Cluster | None, workers: int | None, servers: int | None) -> list[str]:
    if cluster is None:
        return []
    if servers is not None:
        return [
            f"--servers {servers}, but {cluster.source} says which servers there are: {len(cluster.servers)}, which "
            "others start. Leave out --servers"
        ]
    if cluster.role != "worker":
        return [
            f"{cluster.source} says that this process is {cluster.role} {cluster.rank}: expected a worker"
        ]
    if workers is not None and workers != 1:
        return [
            f"--workers {workers}, but {cluster.source} says that this process is worker {cluster.rank} of "
            f"{cluster.num_workers}, which others start. Leave out --workers"
        ]
    return []


def _recovery_problems(
    grace_s: float | None, backup: str | None, backup_every: int | None, max_restarts: int | None
) -> list[str]:
    problems = []
    if grace_s is not None and not is_duration(grace_s):
        problems.append(f"--grace {grace_s:g} is impossible: expected seconds, more than 0")
    if backup_every is not None and not is_count(backup_every):
        problems.append(f"--backup-every {backup_every} is impossible: expected steps, 1 or more")
    if backup_every is not None and backup is None:
        problems.append(f"--backup-every {backup_every} says how often, but not where: add --backup FOLDER")
    if max_restarts is not None and max_restarts < 0:
        problems.append(f"--max-restarts {max_restarts} is impossible: expected a whole number, 0 or more")
    return problems


def _target_problems(target: str, kind: str) -> list[str]:
    if kind == SCRIPT and not os.path.exists(target):
        return [f"there is no file {target!r} in {os.getcwd()}: expected the path of a Python script"]
    return []


def _device_problems(
    backend: str, num_workers: int, per_worker: int, machine: Machine, environ: Mapping[str, str]
) -> list[str]:
    replicas, num_gpus = num_workers * per_worker, len(machine.gpus)
    if num_gpus:
        if replicas > num_gpus:
            return [
                f"{replicas} replicas need {replicas} devices, but {backend} can use {num_gpus} GPU here. "
                f"Type --replicas {num_gpus}, or set {CUDA_VISIBLE_DEVICES}=-1 to train on the CPU"
            ]
    elif backend == "jax" and per_worker > machine_facts.num_virtual_devices(environ) > 1:
        return [
            f"{per_worker} replicas in one worker, but the environment divides JAX's CPU into "
            f"{machine_facts.num_virtual_devices(environ)} devices (JAX_NUM_CPU_DEVICES="
            f"{environ.get('JAX_NUM_CPU_DEVICES')!r}, {XLA_FLAGS}={environ.get(XLA_FLAGS)!r}). Unset that"
        ]
    return []


def _timeout_s(timeout_s: float | None, environ: Mapping[str, str], problems: list[str]) -> float:
    text = environ.get(TIMEOUT_S, "")
    if timeout_s is None and text:
        try:
            timeout_s = float(text)
        except ValueError:
            problems.append(f"{TIMEOUT_S} is {text!r}: expected seconds")
    value = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    if not 0 < value < float("inf"):
        problems.append(f"the time-out is {value} s: expected more than 0")
        return DEFAULT_TIMEOUT_S
    return value


def _seed(environ: Mapping[str, str], cluster: Cluster | None, backup: str | None) -> int:
    """The user's seed, else a random one; among several launchers, one on which all of them agree.

    With backups it follows from their place: another start must shuffle the data as the one before.
    """
    text = environ.get(SEED, "")
    if text:
        refuse([] if text.isdecimal() else [f"{SEED} is {text!r}: expected a whole number, 0 or more"])
        return int(text)
    if backup is not None:
        return _number_from(backup)
    return secrets.randbits(31) if cluster is None else _number_from(repr((cluster.run_id, cluster.workers)))


def _number_from(text: str) -> int:
    return int.from_bytes(sha256(text.encode()).digest()[:4], "big") >> 1


def _gpu_names(environ: Mapping[str, str], count: int) -> tuple[str, ...]:
    named = environ.get(CUDA_VISIBLE_DEVICES)
    names = [str(index) for index in range(count)] if named is None else named.split(",")
    return tuple(name.strip() for name in names[:count])
