"""What the cluster's objects say about a run: API objects in, a small value out. Asks nobody."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trireme.cluster.kubernetes import CLUSTER
from trireme.launch.kubernetes.pods import CONTAINER, ROLE_LABEL
from trireme.launch.kubernetes.render import QUEUE_LABEL

INDEX_KEY = "batch.kubernetes.io/job-completion-index"
Object = Mapping[str, Any]

MISSING, PENDING, RUNNING, SUCCEEDED, FAILED, TERMINATING = (
    "Missing",
    "Pending",
    "Running",
    "Succeeded",
    "Failed",
    "Terminating",
)

_POD_IN_MESSAGE = re.compile(
    r"for pod (?P<namespace>[^/\s]+)/(?P<name>\S+) failed with exit code (?P<code>\d+)"
)


@dataclass(frozen=True)
class PodState:
    """One pod, or one that should be there.

    Attributes:
        role: `"worker"` or `"server"`.
        index: its place among the pods of the role.
        name: the pod's name; empty for one that is missing.
        phase: Missing, Pending, Running, Succeeded, Failed or Terminating.
        node: the node it was given, or empty.
        reason: why it is not running, in the cluster's words, or empty.
        exit_code: of its container, once that has ended.
        last_words: the end of what a failed container said.
        is_disrupted: whether the cluster took it away: preempted, evicted, drained.
        is_started: whether its container has been started, so that there is a log.
        finished_at: when its container ended, as seconds of the epoch, or None.
        deleted_at: until when it had to be gone, likewise, or None.
    """

    role: str
    index: int
    name: str = ""
    phase: str = MISSING
    node: str = ""
    reason: str = ""
    exit_code: int | None = None
    last_words: str = ""
    is_disrupted: bool = False
    is_started: bool = False
    finished_at: float | None = None
    deleted_at: float | None = None


@dataclass(frozen=True)
class RunState:
    """A run as a whole.

    Attributes:
        name: the run's name.
        pods: the newest pod of every rank, workers first; those that are missing too.
        earlier: pods that were replaced.
        outcome: `"Complete"`, `"Failed"`, or empty while it is neither.
        outcome_reason: the controller's reason, like `"PodFailurePolicy"`.
        outcome_message: the controller's words.
        decisive_pod: the pod that the controller's message names, or empty.
        decisive_code: the exit code that it names, or None.
        failed_indexes: of the role whose Job failed, by role: indexes with no restart left.
        queue: the Kueue queue it was given to, or empty.
        is_suspended: whether it is not to run: stopped, or waiting in its queue.
        is_gone: whether nothing of it is in the cluster.
    """

    name: str
    pods: tuple[PodState, ...] = ()
    earlier: tuple[PodState, ...] = ()
    outcome: str = ""
    outcome_reason: str = ""
    outcome_message: str = ""
    decisive_pod: str = ""
    decisive_code: int | None = None
    failed_indexes: tuple[tuple[str, int], ...] = ()
    queue: str = ""
    is_suspended: bool = False
    is_gone: bool = False

    def restarts(self, pod: PodState) -> int:
        """How many pods of its rank came before it."""
        return sum((one.role, one.index) == (pod.role, pod.index) for one in self.earlier)

    @property
    def has_leaving_pods(self) -> bool:
        return any(pod.phase == TERMINATING for pod in self.pods)

    def num_pods(self, role: str) -> int:
        return sum(pod.role == role for pod in self.pods)


def observe(
    name: str, jobs: Iterable[Object], pods: Iterable[Object], events: Iterable[Object] = ()
) -> RunState:
    """The state of a run.

    Args:
        name: the run's name.
        jobs: its Jobs, and its JobSet where there is one.
        pods: all its pods, those of other attempts as well.
        events: what the cluster reported of its Jobs, for pods that could not even be made.
    """
    all_jobs = list(jobs)
    if not all_jobs:
        return RunState(name, is_gone=True)
    newest, earlier = _newest([_pod_state(pod) for pod in sorted(pods, key=_order)])
    outcome = _outcome(all_jobs)
    match = _POD_IN_MESSAGE.search(outcome.get("message", ""))
    return RunState(
        name,
        pods=_with_missing(newest, _expected(all_jobs), _why_missing(events)),
        earlier=tuple(earlier),
        outcome={"Complete": "Complete", "Completed": "Complete"}.get(
            outcome.get("type", ""), outcome.get("type", "")
        ),
        outcome_reason=outcome.get("reason", ""),
        outcome_message=outcome.get("message", ""),
        decisive_pod=match["name"] if match else "",
        decisive_code=int(match["code"]) if match else None,
        failed_indexes=tuple(_failed_indexes(all_jobs)),
        queue=next(
            filter(None, (job["metadata"].get("labels", {}).get(QUEUE_LABEL, "") for job in all_jobs)), ""
        ),
        is_suspended=any(job["spec"].get("suspend", False) for job in _leading(all_jobs)),
    )


def indexes(text: str) -> list[int]:
    """The numbers in a list as the Job controller writes it: `"1,3-5"`."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def seconds(text: str | None) -> float | None:
    """A time as the API writes it, as seconds of the epoch."""
    return None if not text else datetime.fromisoformat(text).timestamp()


def _order(pod: Object) -> tuple[str, bool, str, str]:
    """The order of pods in time. They are stamped with whole seconds; a pod is made after another has failed."""
    metadata, status = pod["metadata"], pod.get("status", {})
    finished = _container_state(status).get("terminated", {}).get("finishedAt") or ""
    return metadata.get("creationTimestamp", ""), status.get("phase") != FAILED, finished, metadata["name"]


def _newest(pods: Sequence[PodState]) -> tuple[dict[tuple[str, int], PodState], list[PodState]]:
    """The newest pod of each rank, and the others, when they come in the order of their creation."""
    newest: dict[tuple[str, int], PodState] = {}
    earlier = []
    for pod in pods:
        before = newest.get((pod.role, pod.index))
        if before is not None:
            earlier.append(before)
        newest[pod.role, pod.index] = pod
    return newest, earlier


def _pod_state(pod: Object) -> PodState:
    metadata, status = pod["metadata"], pod.get("status", {})
    labels = metadata.get("labels", {})
    index = labels.get(INDEX_KEY, metadata.get("annotations", {}).get(INDEX_KEY, "0"))
    container = _container_state(status)
    ended = container.get("terminated", {})
    phase = status.get("phase", PENDING)
    is_leaving = "deletionTimestamp" in metadata and phase not in (SUCCEEDED, FAILED)
    return PodState(
        role=labels.get(ROLE_LABEL, "worker"),
        index=int(index),
        name=metadata["name"],
        phase=TERMINATING if is_leaving else phase,
        node=pod.get("spec", {}).get("nodeName", ""),
        reason=_reason(status, container),
        exit_code=ended.get("exitCode"),
        last_words=ended.get("message", ""),
        is_disrupted=_condition(status, "DisruptionTarget").get("status") == "True",
        is_started="running" in container or bool(ended.get("startedAt")),
        finished_at=seconds(ended.get("finishedAt")),
        deleted_at=seconds(metadata.get("deletionTimestamp")),
    )


def _container_state(status: Object) -> dict[str, Any]:
    """The state of our container; of one that prepares the pod while that is what it waits for."""
    for entry in status.get("containerStatuses", ()):
        if (
            entry["name"] == CONTAINER
            and entry.get("state", {}).get("waiting", {}).get("reason") != "PodInitializing"
        ):
            state: dict[str, Any] = entry.get("state", {})
            return state
    for entry in status.get("initContainerStatuses", ()):
        waiting = entry.get("state", {}).get("waiting")
        if waiting:
            return {"waiting": waiting}
        ended = entry.get("state", {}).get("terminated", {})
        if ended.get("exitCode"):
            return {"terminated": {**ended, "startedAt": None}}
    return {}


def _reason(status: Object, container: Object) -> str:
    """Why a pod is not running, in the words of the scheduler, the kubelet or the controller."""
    if status.get("phase") == PENDING:
        scheduled = _condition(status, "PodScheduled")
        if scheduled.get("status") == "False":
            return str(scheduled.get("message") or scheduled.get("reason", ""))
        waiting = container.get("waiting", {})
        if waiting.get("reason") in (None, "ContainerCreating", "PodInitializing"):
            return ""
        return ": ".join(filter(None, (waiting["reason"], waiting.get("message", ""))))
    disrupted = _condition(status, "DisruptionTarget")
    if disrupted.get("status") == "True":
        return ": ".join(filter(None, (disrupted.get("reason", ""), disrupted.get("message", ""))))
    if status.get("reason"):
        return ": ".join(filter(None, (status["reason"], status.get("message", ""))))
    ended = container.get("terminated", {})
    return "OOMKilled" if ended.get("reason") == "OOMKilled" else ""


def _condition(status: Object, kind: str) -> dict[str, Any]:
    return next((dict(one) for one in status.get("conditions", ()) if one["type"] == kind), {})


def _leading(jobs: list[Object]) -> list[Object]:
    """The objects that decide: the JobSet, where there is one, else the Jobs."""
    sets = [job for job in jobs if job.get("kind") == "JobSet"]
    return sets or jobs


def _role_of(job: Object) -> str:
    return str(job["metadata"].get("labels", {}).get(ROLE_LABEL, "worker"))


def _outcome(jobs: list[Object]) -> dict[str, Any]:
    """The condition that ended the run: any failure, or the workers' completion."""
    ends = [
        (job, condition)
        for job in _leading(jobs)
        for condition in job.get("status", {}).get("conditions", ())
        if condition["status"] == "True" and condition["type"] in ("Complete", "Completed", "Failed")
    ]
    failed = [condition for _, condition in ends if condition["type"] == "Failed"]
    completed = [
        condition for job, condition in ends if condition not in failed and _role_of(job) == "worker"
    ]
    return dict(next(iter(failed + completed), {}))


def _failed_indexes(jobs: list[Object]) -> Iterable[tuple[str, int]]:
    for job in jobs:
        for index in indexes(job.get("status", {}).get("failedIndexes", "")):
            yield _role_of(job), index


def _expected(jobs: list[Object]) -> dict[str, int]:
    """The number of pods of each role, as the pods themselves are told."""
    for job in jobs:
        spec = job["spec"]
        templates = [spec["template"]] if "template" in spec else []
        templates += [one["template"]["spec"]["template"] for one in spec.get("replicatedJobs", ())]
        for template in templates:
            for container in template["spec"]["containers"]:
                for entry in container.get("env", ()):
                    if entry["name"] == CLUSTER:
                        return {role: one["replicas"] for role, one in json.loads(entry["value"]).items()}
    return {}


def _with_missing(
    newest: Mapping[tuple[str, int], PodState], expected: Mapping[str, int], why: Mapping[str, str]
) -> tuple[PodState, ...]:
    ranks = [(role, index) for role, count in expected.items() for index in range(count)]
    ranks += sorted(newest.keys() - set(ranks))
    return tuple(newest.get(rank) or PodState(*rank, reason=why.get(rank[0], "")) for rank in ranks)


def _why_missing(events: Iterable[Object]) -> dict[str, str]:
    """By role, why its Job could not make a pod: a quota, an admission webhook."""
    reasons: dict[str, str] = {}
    for event in sorted(events, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or "")):
        if event.get("reason") == "FailedCreate":
            role = "server" if "-server" in event["involvedObject"]["name"] else "worker"
            reasons[role] = str(event.get("message", ""))
    return reasons
