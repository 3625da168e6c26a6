"""A job: everything about the workers a launcher starts on this machine, as one frozen value."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from trireme.cluster.cluster import Cluster
from trireme.errors import UsageError

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_GRACE_S = 10.0

SCRIPT, MODULE, CALL = "script", "module", "call"
KINDS = (SCRIPT, MODULE, CALL)
EPOCH = "epoch"
# On these backends one worker process drives one device; a jax worker drives as many as it is given.
ONE_DEVICE_BACKENDS = ("tensorflow", "torch")
BACKENDS = (*ONE_DEVICE_BACKENDS, "jax")


def new_id() -> str:
    """A name that nothing else has."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Job:
    """What to run, as how many workers, and under which conditions.

    Args:
        target: the path of a script, the name of a module, or the folder of a pickled call.
        arguments: what the target finds in `sys.argv[1:]`.
        kind: which of the three it is: `"script"`, `"module"` or `"call"`.
        backend: the Keras backend.
        num_workers: worker processes to start on this machine.
        num_servers: parameter servers to start on this machine.
        replicas_per_worker: devices each of them drives.
        cluster: the cluster the workers belong to when others of it run elsewhere. The first worker
            started here has `cluster.rank`, the others follow it. None: the workers of this job are all.
        strategy: the name of a strategy to enter around the target, or None.
        log_dir: folder for the workers' output, made if missing. None: a fresh temporary folder.
        timeout_s: seconds a worker may wait for its peers.
        time_limit_s: seconds the whole run may take, or None.
        grace_s: seconds between asking a worker to end and killing it.
        seed: common to all workers.
        max_restarts: how often the run is started again when it fails.
        backup: where every `fit` that has no backup of its own is backed up, or None.
        backup_every: the steps between two of these backups, or `"epoch"`.
        generation: how often the run was started before this start.
        num_cores: CPU cores the workers share.
        gpus: names of the GPUs the workers share, as in `CUDA_VISIBLE_DEVICES`.
        flags: options of the Python interpreter, `-u` or `-X dev`, for the workers.
        is_path_safe: whether the interpreter was told to leave the script's folder out of `sys.path`.
        environ: the environment the workers start from.
        entry: the module a worker begins in.
        run_id: the name all workers of the run share.
        launch_id: the name by which this launcher, and no other, finds its processes.

    Raises:
        UsageError: the values cannot work together; the message lists everything wrong.
    """

    target: str
    arguments: tuple[str, ...] = ()
    kind: str = SCRIPT
    backend: str = "tensorflow"
    num_workers: int = 1
    num_servers: int = 0
    replicas_per_worker: int = 1
    cluster: Cluster | None = None
    strategy: str | None = None
    log_dir: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    time_limit_s: float | None = None
    grace_s: float = DEFAULT_GRACE_S
    seed: int = 0
    max_restarts: int = 0
    backup: str | None = None
    backup_every: int | str = EPOCH
    generation: int = 0
    num_cores: int = 1
    gpus: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    is_path_safe: bool = False
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    entry: str = "trireme.launch.bootstrap"
    run_id: str = field(default_factory=new_id)
    launch_id: str = field(default_factory=new_id)

    def __post_init__(self) -> None:
        refuse(_problems(self))

    @property
    def ranks(self) -> range:
        """The ranks of the workers started on this machine."""
        first = self.cluster.rank if self.cluster is not None else 0
        return range(first, first + self.num_workers)

    @property
    def is_whole_run(self) -> bool:
        """Whether no worker of the run is started elsewhere."""
        return self.cluster is None or self.cluster.num_workers == self.num_workers


def refuse(problems: list[str]) -> None:
    """Raises one UsageError for all problems, if there are any."""
    if problems:
        raise UsageError("\n  - ".join(["This run cannot start:", *problems]))


def _problems(job: Job) -> list[str]:
    problems = []
    if job.kind not in KINDS:
        problems.append(f"kind is {job.kind!r}: expected one of {', '.join(KINDS)}")
    for name in ("num_workers", "replicas_per_worker", "num_cores"):
        if not is_count(getattr(job, name)):
            problems.append(f"{name} is {getattr(job, name)!r}: expected a whole number, 1 or more")
    for name in ("timeout_s", "time_limit_s", "grace_s"):
        value = getattr(job, name)
        if value is not None and not is_duration(value):
            problems.append(f"{name} is {value!r}: expected seconds, more than 0")
    if not (job.max_restarts == 0 or is_count(job.max_restarts)):
        problems.append(f"max_restarts is {job.max_restarts!r}: expected a whole number, 0 or more")
    if job.backup_every != EPOCH and not is_count(job.backup_every):
        problems.append(f"backup_every is {job.backup_every!r}: expected {EPOCH!r} or steps, 1 or more")
    if not (job.num_servers == 0 or is_count(job.num_servers)):
        problems.append(f"num_servers is {job.num_servers!r}: expected a whole number, 0 or more")
    if job.backend in ONE_DEVICE_BACKENDS and job.replicas_per_worker != 1:
        problems.append(
            f"replicas_per_worker is {job.replicas_per_worker!r}: a {job.backend} worker drives one device; "
            "start more workers instead"
        )
    if not problems and job.cluster is not None and job.ranks.stop > job.cluster.num_workers:
        problems.append(
            f"workers {job.ranks.start} to {job.ranks.stop - 1} shall start here, but the cluster has "
            f"{job.cluster.num_workers}"
        )
    return problems


def is_count(value: object) -> bool:
    """Whether this is a whole number, 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_duration(value: object) -> bool:
    """Whether this is a number of seconds that can pass."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")
