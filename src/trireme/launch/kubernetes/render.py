"""A job as the objects Kubernetes is given: a pure function of the job."""

import base64
from collections.abc import Mapping
from typing import Any

from trireme.errors import EXIT_CONFIGURATION, EXIT_PEER_LOST, EXIT_RESTART_BUDGET_USED_UP, EXIT_USAGE
from trireme.launch.kubernetes.environment import PORTS, RENDEZVOUS_PORT
from trireme.launch.kubernetes.pods import (
    CONTAINER,
    ROLE_LABEL,
    RUN_LABEL,
    config_map_keys,
    keys_name,
    pod_template,
    source_name,
)
from trireme.launch.kubernetes.spec import KubernetesJob

FAILURES_PER_POD = 3
FAILURES_PER_POD_REPLACED_ALONE = 5
KEPT_FOR_S = 24 * 3600
OWNER_ANNOTATION = "trireme.dev/owner"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

_FINAL = sorted((EXIT_USAGE, EXIT_RESTART_BUDGET_USED_UP, EXIT_CONFIGURATION))


def render(job: KubernetesJob) -> list[dict[str, Any]]:
    """The objects of a run, in the order in which they are to be created.

    Plain Jobs: a headless Service, a ConfigMap where code is shipped, the workers' Job and, with
    servers, the servers' Job. With `jobset`: the ConfigMap and one JobSet, whose controller makes the
    rest. Deleting the object that an object names in its annotation `trireme.dev/owner` leaves that
    object without a purpose: whoever creates them gives it an `ownerReference` to that one, whose uid
    is not known before. With servers, the pods also need the objects of `secrets`.
    """
    code = [_config_map(job)] if job.source.files else []
    if job.jobset:
        return [*code, _jobset(job)]
    return [_service(job), *code, *(_plain_job(job, role) for role in job.roles)]


def secrets(job: KubernetesJob, keys: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """The Secrets that the pods of a run with servers refer to; `keys` has the variables of each role."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": _metadata(job, keys_name(job, role), role) | _owned(job),
            "type": "Opaque",
            # Pods that are replaced must know the keys of those that were not.
            "immutable": True,
            "data": {name: base64.b64encode(value.encode()).decode() for name, value in keys[role].items()},
        }
        for role in job.roles
    ]


def header(job: KubernetesJob) -> str:
    """The run in a sentence, and the commands with which a person starts, watches and ends it."""
    pods = " and ".join(f"{count} {role} pod{'s' if count > 1 else ''}" for role, count in job.roles.items())
    namespace = f" --namespace {job.namespace}" if job.namespace else ""
    chosen = f"--selector {RUN_LABEL}={job.name}{namespace}"
    kinds = ["jobsets", "configmaps"] if job.jobset else ["jobs", "services", "configmaps"]
    kinds += ["secrets"] if job.servers else []
    requests = max(5, sum(job.roles.values()))
    keys = (
        ["keys:   the same command with --keys prints the Secrets that the pods wait for"]
        if job.servers
        else []
    )
    return "\n".join(
        (
            f"Trireme run {job.name}: {pods} on {job.backend}.",
            *keys,
            "start:  kubectl apply --server-side --filename THIS_FILE",
            f"watch:  kubectl get pods --watch {chosen}",
            f"logs:   kubectl logs --follow --prefix --tail=-1 --max-log-requests={requests} {chosen}",
            f"delete: kubectl delete {','.join(kinds)} {chosen}",
        )
    )


def _service(job: KubernetesJob) -> dict[str, Any]:
    """The headless Service that gives each pod of every role a name of its own."""
    ports = {"rendezvous": RENDEZVOUS_PORT} | {role: PORTS[role] for role in job.roles}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, job.name) | _owned(job),
        "spec": {
            "clusterIP": "None",
            # Pods are ready only after they have met, and they meet by these names.
            "publishNotReadyAddresses": True,
            "selector": {RUN_LABEL: job.name},
            "ports": [{"name": name, "port": port} for name, port in ports.items()],
        },
    }


def _config_map(job: KubernetesJob) -> dict[str, Any]:
    """The code, byte for byte: what is no UTF-8 goes in as base64."""
    keys = config_map_keys(job.source)
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for path, content in job.source.files:
        try:
            texts[keys[path]] = content.decode()
        except UnicodeDecodeError:
            others[keys[path]] = base64.b64encode(content).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(job, source_name(job)) | _owned(job),
        # A pod that is replaced later must run the code that the others run.
        "immutable": True,
        **({"data": texts} if texts else {}),
        **({"binaryData": others} if others else {}),
    }


def _plain_job(job: KubernetesJob, role: str) -> dict[str, Any]:
    ends_with_chief = role == "worker" and job.servers > 0
    limit = FAILURES_PER_POD_REPLACED_ALONE if ends_with_chief else FAILURES_PER_POD
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(job, job.job_name(role), role, queue=True) | _owned(job, but_not=role),
        "spec": {
            **_suspended(job),
            **_one_pod_for_each_index(job, role),
            **_replaces_pods(limit, gives_up=role == "server"),
            "ttlSecondsAfterFinished": KEPT_FOR_S,
            # With servers, training is over when the chief says so, whatever the other workers still do.
            **({"successPolicy": {"rules": [{"succeededIndexes": "0"}]}} if ends_with_chief else {}),
            "template": pod_template(job, role),
        },
    }


def _jobset(job: KubernetesJob) -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job, job.name, queue=True),
        "spec": {
            **_suspended(job),
            "ttlSecondsAfterFinished": KEPT_FOR_S,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            **(
                {"successPolicy": {"operator": "All", "targetReplicatedJobs": ["worker"]}}
                if job.servers
                else {}
            ),
            "failurePolicy": _restarts_the_set(job),
            # Servers first: the workers' entry refers to theirs.
            "replicatedJobs": [_replicated_job(job, role) for role in reversed(job.roles)],
        },
    }


def _replicated_job(job: KubernetesJob, role: str) -> dict[str, Any]:
    replaced_alone = role == "worker" and job.servers > 0
    failures = _replaces_pods(FAILURES_PER_POD_REPLACED_ALONE) if replaced_alone else _fails_with_any_pod()
    return {
        "name": role,
        "replicas": 1,
        **({"dependsOn": [{"name": "server", "status": "Ready"}]} if replaced_alone else {}),
        "template": {
            "spec": {**_one_pod_for_each_index(job, role), **failures, "template": pod_template(job, role)}
        },
    }


def _restarts_the_set(job: KubernetesJob) -> dict[str, Any]:
    """The first matching rule decides; without one the set is restarted, and that is counted."""
    disruption: dict[str, Any] = {
        "name": "disruption",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    if job.servers:
        disruption["targetReplicatedJobs"] = ["server"]
    codes = "|".join(map(str, _FINAL))
    return {
        "maxRestarts": job.max_restarts,
        # All old pods are gone before new ones start: no two pods of one rank.
        "restartStrategy": "BlockingRecreate",
        "rules": [
            {
                "name": "final",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
                # A job's message is the only thing that tells which of its rules matched.
                "onJobFailureMessagePatterns": [f"failed with exit code ({codes}) matching"],
            },
            disruption,
        ],
    }


def _one_pod_for_each_index(job: KubernetesJob, role: str) -> dict[str, Any]:
    return {"completionMode": "Indexed", "completions": job.roles[role], "parallelism": job.roles[role]}


def _replaces_pods(limit: int, gives_up: bool = False) -> dict[str, Any]:
    """A failed pod is replaced by one with its index; more than `limit` failures of one index fail the Job.

    It comes back as well when its peers failed it, unless that is when it `gives_up`: as a server does without workers.
    A limit for the whole Job would come with a back-off for the whole Job, which doubles with each pod
    that leaves.
    """
    return {
        "backoffLimitPerIndex": limit,
        "maxFailedIndexes": 0,
        # Never two live pods of one rank: frameworks refuse the second.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                _on_exit_codes("FailJob", _FINAL),
                _on_disruption("Ignore"),
                _on_exit_codes("FailJob" if gives_up else "Ignore", [EXIT_PEER_LOST]),
            ]
        },
    }


def _fails_with_any_pod() -> dict[str, Any]:
    """Any lost pod fails the Job: its JobSet then restarts all of them."""
    return {
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": [_on_exit_codes("FailJob", _FINAL), _on_disruption("FailJob")]},
    }


def _on_exit_codes(action: str, codes: list[int]) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": codes}}


def _on_disruption(action: str) -> dict[str, Any]:
    """Preempted, evicted, drained, on a lost node: not the run's fault."""
    return {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def _metadata(job: KubernetesJob, name: str, role: str = "", *, queue: bool = False) -> dict[str, Any]:
    labels = {RUN_LABEL: job.name}
    if role:
        labels[ROLE_LABEL] = role
    if queue and job.queue:
        labels[QUEUE_LABEL] = job.queue
    return {"name": name, **({"namespace": job.namespace} if job.namespace else {}), "labels": labels}


def _owned(job: KubernetesJob, but_not: str = "") -> dict[str, Any]:
    """The annotation that names the owner; the workers' Job itself, which is the owner, gets none."""
    if but_not == "worker":
        return {}
    owner = f"JobSet/{job.name}" if job.jobset else f"Job/{job.job_name('worker')}"
    return {"annotations": {OWNER_ANNOTATION: owner}}


def _suspended(job: KubernetesJob) -> dict[str, Any]:
    """Kueue starts a job that waits suspended in its queue."""
    return {"suspend": True} if job.queue else {}
