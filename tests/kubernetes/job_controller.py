"""The Job controller as Kubernetes documents it and as version 1.36 was seen to behave, for Indexed Jobs.

`reconcile` is pure: a Job, its pods and the time go in, what the controller would do comes out. Tests use it
where no cluster can be had; `test_job_controller.py` holds it to what was measured on a real one.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import string
from typing import Any

INDEX_KEY = "batch.kubernetes.io/job-completion-index"
JOB_KEY = "batch.kubernetes.io/job-name"
BACKOFF_S = 10.0


@dataclasses.dataclass
class History:
    """What the controller remembers of one Job beside its pods, which may be deleted."""

    counted: set[str] = dataclasses.field(default_factory=set)  # uids of pods that are accounted for
    failures: dict[int, int] = dataclasses.field(default_factory=dict)
    last_failure: dict[int, float] = dataclasses.field(default_factory=dict)
    completed: set[int] = dataclasses.field(default_factory=set)
    failed: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Decision:
    """What the controller does: pods to make, pods to delete, and how the Job stands."""

    create: tuple[dict[str, Any], ...] = ()
    delete: tuple[str, ...] = ()
    status: dict[str, Any] = dataclasses.field(default_factory=dict)
    wake_s: float | None = None


def reconcile(
    job: dict[str, Any],
    pods: list[dict[str, Any]],
    history: History,
    now: float,
    backoff_s: float = BACKOFF_S,
) -> Decision:
    """One round of the controller."""
    spec = job["spec"]
    active = [pod["metadata"]["name"] for pod in pods if _is_active(pod)]
    if _condition(job, "Complete") or _condition(job, "Failed"):
        return Decision(delete=tuple(active), status=job["status"])
    end = _account(job, pods, history, now)
    if end is not None:
        return Decision(delete=tuple(active), status=_status(job, pods, history, end))
    if spec.get("suspend"):
        condition = {"type": "Suspended", "status": "True", "reason": "JobSuspended"}
        return Decision(delete=tuple(active), status=_status(job, pods, history, condition))
    create, wake_s = [], None
    for index in range(spec["completions"]):
        if index in history.completed | history.failed or any(
            _index(pod) == index and _holds(pod) for pod in pods
        ):
            continue
        wait_s = _backoff(history, index, backoff_s) - (now - history.last_failure.get(index, float("-inf")))
        if wait_s > 0:
            wake_s = wait_s if wake_s is None else min(wake_s, wait_s)
        else:
            create.append(_pod(job, index))
    return Decision(tuple(create), (), _status(job, pods, history), wake_s)


def _account(
    job: dict[str, Any], pods: list[dict[str, Any]], history: History, now: float
) -> dict[str, Any] | None:
    """Counts what has ended since the last round; the condition that ends the Job, if one does."""
    spec = job["spec"]
    for pod in pods:
        phase, uid = pod.get("status", {}).get("phase"), pod["metadata"]["uid"]
        if uid in history.counted or phase not in ("Succeeded", "Failed"):
            continue
        history.counted.add(uid)
        index = _index(pod)
        if phase == "Succeeded":
            history.completed.add(index)
            continue
        action, message = _policy(spec, pod)
        history.last_failure[index] = now
        if action == "FailJob":
            return {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": message}
        if action == "Ignore":
            continue
        history.failures[index] = history.failures.get(index, 0) + 1
        if history.failures[index] > spec["backoffLimitPerIndex"]:
            history.failed.add(index)
    if len(history.failed) > spec.get("maxFailedIndexes", spec["completions"]):
        message = "Job has exceeded the specified maximal number of failed indexes"
        return {"type": "Failed", "status": "True", "reason": "MaxFailedIndexesExceeded", "message": message}
    for rule in spec.get("successPolicy", {}).get("rules", ()):
        if {int(one) for one in rule["succeededIndexes"].split(",")} <= history.completed:
            return {
                "type": "Complete",
                "status": "True",
                "reason": "SuccessPolicy",
                "message": "Matched rules at index 0",
            }
    if len(history.completed) == spec["completions"]:
        message = "Reached expected number of succeeded pods"
        return {"type": "Complete", "status": "True", "reason": "CompletionsReached", "message": message}
    return None


def _policy(spec: dict[str, Any], pod: dict[str, Any]) -> tuple[str, str]:
    """What the first matching rule asks for, and the message with which it ends a Job."""
    status, metadata = pod["status"], pod["metadata"]
    for number, rule in enumerate(spec.get("podFailurePolicy", {}).get("rules", ())):
        for one in rule.get("onPodConditions", ()):
            if any(
                c["type"] == one["type"] and c["status"] == one["status"]
                for c in status.get("conditions", ())
            ):
                return rule["action"], f"Pod {metadata['name']} has condition {one['type']}"
        codes = rule.get("onExitCodes")
        for container in status.get("containerStatuses", ()):
            code = container["state"].get("terminated", {}).get("exitCode")
            if codes and container["name"] == codes["containerName"] and code in codes["values"]:
                return rule["action"], (
                    f"Container {container['name']} for pod {metadata['namespace']}/{metadata['name']} failed with "
                    f"exit code {code} matching {rule['action']} rule at index {number}"
                )
    return "Count", ""


def _pod(job: dict[str, Any], index: int) -> dict[str, Any]:
    """A new pod of an index, as the controller makes it from the template."""
    name, template = job["metadata"]["name"], copy.deepcopy(job["spec"]["template"])
    labels = template["metadata"].get("labels", {}) | {INDEX_KEY: str(index), JOB_KEY: name}
    spec = template["spec"] | {"hostname": f"{name}-{index}"}
    for container in spec["containers"]:
        path = f"metadata.labels['{INDEX_KEY}']"
        container.setdefault("env", []).append(
            {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}}
        )
    ending = "".join(random.choices(string.ascii_lowercase + string.digits, k=5))
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name,
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": f"{name}-{index}-{ending}",
            "namespace": job["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def _status(
    job: dict[str, Any], pods: list[dict[str, Any]], history: History, condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "active": sum(map(_is_active, pods)),
        "succeeded": len(history.completed),
        "failed": sum(history.failures.values()),
        "completedIndexes": ",".join(map(str, sorted(history.completed))),
        "failedIndexes": ",".join(map(str, sorted(history.failed))),
        "conditions": [condition] if condition else [],
    }


def _backoff(history: History, index: int, backoff_s: float) -> float:
    """What is waited after an index' last failure: twice as long after each that counts."""
    return backoff_s * 2 ** max(history.failures.get(index, 0) - 1, 0)


def _index(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"][INDEX_KEY])


def _is_active(pod: dict[str, Any]) -> bool:
    return (
        pod.get("status", {}).get("phase") in ("Pending", "Running")
        and "deletionTimestamp" not in pod["metadata"]
    )


def _holds(pod: dict[str, Any]) -> bool:
    """Whether the pod keeps its index: with `podReplacementPolicy: Failed` also while it terminates."""
    return pod.get("status", {}).get("phase") in ("Pending", "Running")


def _condition(job: dict[str, Any], kind: str) -> bool:
    conditions = job.get("status", {}).get("conditions", ())
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)
