"""The environment of a role's pods: static, because one pod template serves all of them.

What differs between the pods of a role is only their index, which the Job controller adds.
`trireme.cluster.kubernetes` makes the cluster from both.
"""

import json
from typing import Any

from trireme.cluster.cluster import REPLICAS_PER_WORKER, ROLE, RUN_ID
from trireme.cluster.kubernetes import CLUSTER
from trireme.cluster.machine import KERAS_BACKEND
from trireme.launch.kubernetes.spec import KubernetesJob
from trireme.launch.variables import (
    BACKEND,
    BACKUP,
    BACKUP_EVERY,
    POD_IP,
    RENDEZVOUS_TIMEOUT_S,
    RESTARTED_BY,
    SEED,
    SNAPSHOTS,
)

RENDEZVOUS_PORT = 29400
PORTS = {"worker": 29500, "server": 2222}
MISSING_S = 600  # pods start apart by as long as an image takes to pull
STOPPING_S = 10  # of the grace period, for the agent to end what did not end by itself
BACKUP_FOLDER = "/trireme/backup"

_FIELDS = {
    "TRIREME_POD": "metadata.name",
    "TRIREME_POD_UID": "metadata.uid",
    POD_IP: "status.podIP",
    "TRIREME_NODE": "spec.nodeName",
}
_JOBSET_FIELDS = {
    RUN_ID: "metadata.annotations['jobset.sigs.k8s.io/jobset-uid']",
    "TRIREME_GENERATION": "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']",
}


def environment(job: KubernetesJob, role: str) -> list[dict[str, Any]]:
    """The `env` entries of a role's container."""
    fields = (_JOBSET_FIELDS if job.jobset else {}) | _FIELDS
    return [
        *({"name": name, "value": literal(value)} for name, value in _values(job, role).items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]


def literal(text: str) -> str:
    """Text as a pod has to have it where `$(NAME)` means a variable: the container then gets it unchanged."""
    return text.replace("$", "$$")


def _values(job: KubernetesJob, role: str) -> dict[str, str]:
    return {
        "TRIREME_RUN": job.name,
        **({} if job.jobset else {RUN_ID: job.run_id}),
        ROLE: role,
        CLUSTER: json.dumps({name: _role(job, name) for name in job.roles}),
        REPLICAS_PER_WORKER: str(job.replicas_per_worker),
        BACKEND: job.backend,
        KERAS_BACKEND: job.backend,
        SEED: str(job.seed),
        "TRIREME_RENDEZVOUS": f"{_host(job, 'worker', 0)}:{RENDEZVOUS_PORT}",
        RENDEZVOUS_TIMEOUT_S: str(MISSING_S),
        "TRIREME_MAX_RESTARTS": str(job.max_restarts),
        RESTARTED_BY: "jobset" if job.jobset else "agent",
        "TRIREME_GRACE_S": str(job.grace_s - min(STOPPING_S, job.grace_s // 3)),
        **(_snapshots(job, role) if job.servers else _backup(job)),
        **_hidden_gpus(job, role),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def _role(job: KubernetesJob, role: str) -> dict[str, str | int]:
    """One role in TRIREME_CLUSTER: how many pods it has, where they are, and how many workers each holds."""
    entry: dict[str, str | int] = {
        "replicas": job.roles[role],
        "host": _host(job, role, "{index}"),
        "port": PORTS[role],
    }
    if role == "worker" and job.workers_per_pod > 1:
        entry["workers_per_pod"] = job.workers_per_pod
    return entry


def _host(job: KubernetesJob, role: str, index: int | str) -> str:
    """A pod's address below the run's Service: the short name, since the domains of clusters differ."""
    return f"{job.pod_name(role, index)}.{job.name}"


def _snapshots(job: KubernetesJob, role: str) -> dict[str, str]:
    """Servers save what they hold, and workers nothing."""
    return {SNAPSHOTS: f"{BACKUP_FOLDER}/{job.name}"} if role == "server" and job.backup_claim else {}


def _backup(job: KubernetesJob) -> dict[str, str]:
    folder = f"{BACKUP_FOLDER}/{job.name}" if job.backup_claim else job.backup
    every = {BACKUP_EVERY: str(job.backup_every)} if job.backup_every else {}
    return {BACKUP: folder} | every if folder else {}


def _hidden_gpus(job: KubernetesJob, role: str) -> dict[str, str]:
    """A CUDA image that requests no GPU can see all GPUs of its node."""
    if role == "worker" and job.gpus:
        return {}
    return {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
