"""The pod template of a role."""

import re
from pathlib import PurePosixPath
from typing import Any

from trireme.launch.kubernetes.environment import BACKUP_FOLDER, PORTS, RENDEZVOUS_PORT, environment, literal
from trireme.launch.kubernetes.quantities import half
from trireme.launch.kubernetes.source import Source
from trireme.launch.kubernetes.spec import KubernetesJob

AGENT_COMMAND = ("python", "-m", "trireme", "worker", "--")
CONTAINER = "main"
RUN_LABEL = "trireme.dev/run"
ROLE_LABEL = "trireme.dev/role"
SOURCE_FOLDER = "/trireme/source"
WORK_FOLDER = "/trireme/work"
NODE_LOST_S = 60

# The entries one by one: the folder they go to belongs to root, and its mode is not for others to set. A mounted
# ConfigMap keeps what it holds in hidden folders, to which it links.
_COPY = f"""\
import os, shutil
for name in os.listdir({SOURCE_FOLDER!r}):
    path, copy = os.path.join({SOURCE_FOLDER!r}, name), os.path.join({WORK_FOLDER!r}, name)
    if os.path.isdir(path) and not name.startswith(".."):
        shutil.copytree(path, copy, dirs_exist_ok=True)
    elif not name.startswith(".."):
        shutil.copy(path, copy)
"""


def pod_template(job: KubernetesJob, role: str) -> dict[str, Any]:
    """The template from which the Job controller makes every pod of a role."""
    return {
        "metadata": {
            "labels": {RUN_LABEL: job.name, ROLE_LABEL: role},
            # An injected side-car outlives the training, and the Job would never complete.
            "annotations": {"sidecar.istio.io/inject": "false"},
        },
        "spec": _without_empty(_pod_spec(job, role)),
    }


def config_map_keys(source: Source) -> dict[str, str]:
    """The key of each shipped file in the ConfigMap: keys know no folders, and fewer characters."""
    keys: dict[str, str] = {}
    taken: set[str] = set()
    for path, _ in source.files:
        key = start = re.sub(r"[^-._a-zA-Z0-9]", "_", path.replace("/", ".")).lstrip(".")[:240] or "file"
        number = 1
        while key in taken:
            number += 1
            key = f"{start}-{number}"
        keys[path] = key
        taken.add(key)
    return keys


def source_name(job: KubernetesJob) -> str:
    """The name of the ConfigMap with the code."""
    return f"{job.name}-source"


def keys_name(job: KubernetesJob, role: str) -> str:
    """The name of the Secret with the keys of a role, in runs with servers."""
    return f"{job.name}-{role}-keys"


def _pod_spec(job: KubernetesJob, role: str) -> dict[str, Any]:
    return {
        # JobSet makes the Service and sets this by itself.
        "subdomain": "" if job.jobset else job.name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": job.priority_class,
        "nodeSelector": job.selected_nodes,
        "tolerations": _tolerations(job, role),
        "affinity": _spread(job) if role == "server" else {},
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [_copying_container(job)] if job.source.is_folder else [],
        "containers": [_container(job, role)],
        "volumes": [volume for volume, _ in _volumes(job, role)],
    }


def _container(job: KubernetesJob, role: str) -> dict[str, Any]:
    source = job.source
    target = (
        ["-m", source.target]
        if source.is_module
        else [str(PurePosixPath(_code_folder(source), source.target))]
    )
    return _without_empty(
        {
            "name": CONTAINER,
            "image": job.image,
            # No shell: the agent is process 1, which alone gets the signal to end.
            "command": [literal(word) for word in (*AGENT_COMMAND, *target)],
            "args": [literal(argument) for argument in source.arguments],
            "workingDir": WORK_FOLDER if source.is_folder else "",
            "ports": [
                {"name": "rendezvous", "containerPort": RENDEZVOUS_PORT},
                {"name": role, "containerPort": PORTS[role]},
            ],
            "env": environment(job, role),
            "envFrom": [{"secretRef": {"name": keys_name(job, role)}}] if job.servers else [],
            "resources": _resources(job, gpus=job.gpus if role == "worker" else 0),
            "securityContext": _unprivileged(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [mount for _, mount in _volumes(job, role)],
        }
    )


def _copying_container(job: KubernetesJob) -> dict[str, Any]:
    """Copies a shipped folder to where the script may also write, as it may where it was written."""
    return _without_empty(
        {
            "name": "source",
            "image": job.image,
            "command": ["python", "-c", _COPY],
            "resources": _resources(job, gpus=0),
            "securityContext": _unprivileged(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                {"name": "source", "mountPath": SOURCE_FOLDER, "readOnly": True},
                {"name": "work", "mountPath": WORK_FOLDER},
            ],
        }
    )


def _code_folder(source: Source) -> str:
    return WORK_FOLDER if source.is_folder else SOURCE_FOLDER


def _resources(job: KubernetesJob, gpus: int) -> dict[str, Any]:
    """Memory is requested in full, so that a node has it; cores are not limited, so that none idle."""
    memory = {"memory": job.memory} if job.memory else {}
    return _without_empty(
        {
            "requests": ({"cpu": job.cpu} if job.cpu else {}) | memory,
            "limits": memory | ({"nvidia.com/gpu": str(gpus)} if gpus else {}),
        }
    )


def _unprivileged() -> dict[str, Any]:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _volumes(job: KubernetesJob, role: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each volume of the pod with its mount in the container."""
    volumes: list[tuple[dict[str, Any], dict[str, Any]]] = []
    if job.source.files:
        mount = {"name": "source", "mountPath": SOURCE_FOLDER, "readOnly": True}
        volumes.append(({"name": "source", "configMap": _mounted_files(job)}, mount))
    if job.source.is_folder:
        volumes.append(({"name": "work", "emptyDir": {}}, {"name": "work", "mountPath": WORK_FOLDER}))
    if job.backup_claim:
        claim = {"claimName": job.backup_claim}
        mount = {"name": "backup", "mountPath": BACKUP_FOLDER}
        volumes.append(({"name": "backup", "persistentVolumeClaim": claim}, mount))
    if role == "worker":
        # The runtime's own /dev/shm has 64 MiB. What is written to this one counts as the container's memory.
        memory = {"medium": "Memory"} | ({"sizeLimit": half(job.memory)} if job.memory else {})
        volumes.append(({"name": "shm", "emptyDir": memory}, {"name": "shm", "mountPath": "/dev/shm"}))
    return volumes


def _mounted_files(job: KubernetesJob) -> dict[str, Any]:
    """The ConfigMap as a volume; the paths of its files are told where they differ from its keys."""
    keys = config_map_keys(job.source)
    volume: dict[str, Any] = {"name": source_name(job)}
    if any(path != key for path, key in keys.items()):
        volume["items"] = [{"key": key, "path": path} for path, key in keys.items()]
    return volume


def _tolerations(job: KubernetesJob, role: str) -> list[dict[str, Any]]:
    lost = [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": NODE_LOST_S,
        }
        for state in ("unreachable", "not-ready")
    ]
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    # Servers use no GPU, but a node selector may have left them only nodes that have some.
    on_gpu_nodes = job.gpus > 0 and (role == "worker" or bool(job.node_selector))
    return [
        *([gpu] if on_gpu_nodes else []),
        *lost,
        *(toleration.to_object() for toleration in job.tolerated_taints),
    ]


def _spread(job: KubernetesJob) -> dict[str, Any]:
    """Servers apart where there is room: each receives the gradients of all workers."""
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {RUN_LABEL: job.name, ROLE_LABEL: "server"}},
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that say something. False and 0 do."""
    return {name: value for name, value in fields.items() if value not in ("", [], {}, None)}
