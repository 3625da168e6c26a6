"""A run on Kubernetes as a checked value."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from trireme.errors import InvalidJob
from trireme.launch.kubernetes.names import (
    Toleration,
    image_problems,
    label_problems,
    parse_node_selector,
    parse_toleration,
    run_name_problems,
    subdomain_problems,
)
from trireme.launch.kubernetes.quantities import cpu_problems, memory_problems
from trireme.launch.kubernetes.source import MAX_BYTES, Source

BACKENDS = ("tensorflow", "jax", "torch")
MAX_PODS = 100_000  # indexes of one Job with a limit of failures for each
SHORTEST_GRACE_S = 5
JOBSET_POD_ENDING = "-abcde"  # the random ending that JobSet counts into the length of a pod's name

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://[^\s]+")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class KubernetesJob:
    """What `trireme render --on kubernetes` was asked for.

    Args:
        name: the run's name; its objects and pods are called after it.
        image: the container image of every pod; Trireme and the backend are installed in it.
        source: the script or module to run.
        workers: number of worker pods.
        servers: number of parameter-server pods.
        gpus: GPUs of each worker pod.
        cpu: cores requested for each pod, as Kubernetes writes them (`"4"`, `"500m"`), or empty.
        memory: memory of each pod, requested and at most (`"16Gi"`), or empty.
        backup_claim: a PersistentVolumeClaim that every node can mount, for backups, or for servers' snapshots.
        backup: a URL for backups, in place of a claim.
        backup_every: steps between two backups; 0: one for each epoch.
        max_restarts: how often the workers are started again after a failure.
        namespace: where the objects are made; empty for the one `kubectl` is set to.
        node_selector: `label=value` that a node must have, for each.
        tolerations: taints as `kubectl taint` writes them, `key=value:effect`.
        priority_class: the name of an existing PriorityClass.
        queue: the Kueue queue that admits the run.
        grace_s: seconds between the request to end and the kill; what a backup may take.
        jobset: whether a JobSet is rendered in place of plain Jobs.
        backend: the Keras backend.
        run_id: tells this run from an earlier one of that name. Empty: made from all of the above, so
            that equal jobs are rendered equal.

    Raises:
        InvalidJob: no cluster could run this; the message lists every mistake.
    """

    name: str
    image: str
    source: Source
    workers: int = 1
    servers: int = 0
    gpus: int = 0
    cpu: str = ""
    memory: str = ""
    backup_claim: str = ""
    backup: str = ""
    backup_every: int = 0
    max_restarts: int = 3
    namespace: str = ""
    node_selector: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()
    priority_class: str = ""
    queue: str = ""
    grace_s: int = 120
    jobset: bool = False
    backend: str = "tensorflow"
    run_id: str = ""

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise InvalidJob(problems)
        if not self.run_id:
            object.__setattr__(self, "run_id", self.digest[:8])

    @property
    def digest(self) -> str:
        """A hexadecimal hash of everything that was asked for, the run id left out."""
        fields = dataclasses.asdict(self) | {"run_id": ""}
        return hashlib.sha256(json.dumps(fields, default=bytes.hex).encode()).hexdigest()

    @property
    def seed(self) -> int:
        """The seed all processes of the run begin with."""
        return int(self.digest[-8:], 16) % 2**31

    @property
    def workers_per_pod(self) -> int:
        """JAX drives all devices of a pod from one worker; the others need a worker for each device."""
        return 1 if self.backend == "jax" else max(self.gpus, 1)

    @property
    def replicas_per_worker(self) -> int:
        return max(self.gpus, 1) if self.backend == "jax" else 1

    @property
    def roles(self) -> dict[str, int]:
        """The number of pods of each role that has any."""
        return {"worker": self.workers} | ({"server": self.servers} if self.servers else {})

    @property
    def selected_nodes(self) -> dict[str, str]:
        return dict(parse_node_selector(text) for text in self.node_selector)

    @property
    def tolerated_taints(self) -> tuple[Toleration, ...]:
        return tuple(parse_toleration(text) for text in self.tolerations)

    def job_name(self, role: str) -> str:
        """The name of the Job that makes the pods of a role. The pods are called after it."""
        if self.jobset:
            return f"{self.name}-{role}-0"
        return f"{self.name}-{role}" if self.servers else self.name

    def pod_name(self, role: str, index: int | str) -> str:
        """The host name of a pod, which is also its name below the run's Service."""
        return f"{self.job_name(role)}-{index}"


def _problems(job: KubernetesJob) -> list[str]:
    """Everything wrong with a job, each in words and with what to type."""
    return [
        *_plain_problems(job),
        *run_name_problems(job.name, _longest_pod_ending(job)),
        *image_problems(job.image),
        *(cpu_problems(job.cpu) if job.cpu else []),
        *(memory_problems(job.memory) if job.memory else []),
        *(label_problems("--namespace", job.namespace) if job.namespace else []),
        *(label_problems("--queue", job.queue) if job.queue else []),
        *(subdomain_problems("--priority-class", job.priority_class) if job.priority_class else []),
        *_backup_problems(job),
        *_placement_problems(job),
        *_source_problems(job.source),
        *_combination_problems(job),
    ]


def _plain_problems(job: KubernetesJob) -> list[str]:
    limits = {
        "--workers": (job.workers, 1, MAX_PODS),
        "--servers": (job.servers, 0, MAX_PODS),
        "--gpus": (job.gpus, 0, 64),
        "--backup-every": (job.backup_every, 0, 10**9),
        "--max-restarts": (job.max_restarts, 0, 10**6),
        "--grace": (job.grace_s, SHORTEST_GRACE_S, 7 * 24 * 3600),
    }
    problems = [
        f"{option} {value!r}: expected a whole number from {low} to {high}"
        for option, (value, low, high) in limits.items()
        if type(value) is not int or not low <= value <= high
    ]
    if job.run_id and not _RUN_ID.fullmatch(job.run_id):
        problems.append(f"run_id {job.run_id!r}: expected at most 63 letters, digits, '-', '_' and '.'")
    if job.backend not in BACKENDS:
        problems.append(f"--backend {job.backend!r}: expected one of {', '.join(BACKENDS)}")
    return problems


def _longest_pod_ending(job: KubernetesJob) -> str:
    """The longest of the endings that make pods' names from the run's name."""
    endings = [
        job.pod_name(role, max(count, 1) - 1).removeprefix(job.name)
        for role, count in job.roles.items()
        if type(count) is int
    ]
    return max(endings, key=len, default="-0") + (JOBSET_POD_ENDING if job.jobset else "")


def _backup_problems(job: KubernetesJob) -> list[str]:
    problems = subdomain_problems("--backup-claim", job.backup_claim) if job.backup_claim else []
    if job.backup_claim and job.backup:
        problems.append(
            f"--backup-claim {job.backup_claim} and --backup {job.backup} both say where backups go: leave "
            "one out"
        )
    if not job.backup:
        return problems
    match = _URL.fullmatch(job.backup)
    if match is None:
        problems.append(
            f"--backup {job.backup!r} is no URL that every pod can reach: expected one like "
            "gs://bucket/folder, or a PersistentVolumeClaim: --backup-claim CLAIM"
        )
    elif match["scheme"] == "file":
        problems.append(
            f"--backup {job.backup} is a folder inside one pod, which ends with the pod: expected object "
            "storage like gs://bucket/folder, or a PersistentVolumeClaim: --backup-claim CLAIM"
        )
    return problems


def _placement_problems(job: KubernetesJob) -> list[str]:
    selectors, problems = _parsed(parse_node_selector, job.node_selector)
    values: dict[str, str] = {}
    for key, value in selectors:
        if values.setdefault(key, value) != value:
            problems.append(
                f"--node-selector {key}={values[key]} and --node-selector {key}={value}: no node has "
                "both, leave one out"
            )
    return problems + _parsed(parse_toleration, job.tolerations)[1]


def _parsed(parse: Callable[[str], _Parsed], texts: Iterable[str]) -> tuple[list[_Parsed], list[str]]:
    """What the good texts mean, and what is wrong with the others."""
    values, problems = [], []
    for text in texts:
        try:
            values.append(parse(text))
        except ValueError as error:
            problems.append(str(error))
    return values, problems


def _source_problems(source: Source) -> list[str]:
    num_bytes = sum(len(content) for _, content in source.files)
    problems = []
    if num_bytes > MAX_BYTES:
        problems.append(
            f"the code is {num_bytes:,} bytes, and a ConfigMap takes {MAX_BYTES:,}: build an image with it"
        )
    for argument in source.arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            problems.append(f"the argument {argument!r} is not UTF-8, which a manifest is written in")
    return problems


def _combination_problems(job: KubernetesJob) -> list[str]:
    if not job.servers:
        return []
    problems = []
    if job.queue and not job.jobset:
        problems.append(
            f"--queue {job.queue} with --servers {job.servers}: Kueue admits each Job by itself, so the "
            "servers could hold what the workers wait for: add --jobset, which is admitted as a whole"
        )
    if job.backup:
        problems.append(
            f"--backup {job.backup} with --servers {job.servers}: servers keep snapshots, in a folder: name a "
            "PersistentVolumeClaim, --backup-claim CLAIM"
        )
    if job.backup_every:
        problems.append(
            f"--backup-every {job.backup_every} with --servers {job.servers}: servers save by the clock, every "
            "TRIREME_SNAPSHOT_INTERVAL_S seconds: leave it out"
        )
    return problems
