"""A run's objects in the cluster: create, find, stop and delete them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from trireme.errors import ClusterRefused, ClusterUnreachable, UsageError
from trireme.launch.kubernetes.connection import Connection
from trireme.launch.kubernetes.observation import RunState, observe
from trireme.launch.kubernetes.pods import ROLE_LABEL, RUN_LABEL
from trireme.launch.kubernetes.render import OWNER_ANNOTATION, QUEUE_LABEL

NOT_FOUND, FORBIDDEN, CONFLICT = 404, 403, 409
_FOLDERS = {
    "Service": "/api/v1/namespaces/{namespace}/services",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "Event": "/api/v1/namespaces/{namespace}/events",
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets",
}
# Those that decide first: what they own goes with them. The rest is named for what never got an owner.
_KINDS = ("JobSet", "Job", "Service", "ConfigMap", "Secret")


class RunObjects:
    """The objects of one run in one namespace."""

    def __init__(self, connection: Connection, name: str, namespace: str = "") -> None:
        self.connection = connection
        self.name = name
        self.namespace = namespace or connection.namespace
        self._failed_pods: dict[str, dict[str, Any]] = {}

    def create(self, objects: Sequence[dict[str, Any]]) -> None:
        """Gives a rendered run to the cluster: all of it, or nothing.

        Raises:
            UsageError: there is a run of that name.
            ClusterRefused: one of the objects; those created before it are deleted again.
        """
        if self._decisive():
            raise UsageError(self._exists())
        created: list[tuple[str, dict[str, Any]]] = []
        try:
            for item in objects:
                answer = self.connection.request(
                    "POST",
                    self._folder(item["kind"]),
                    item,
                    {"fieldValidation": "Strict", "fieldManager": "trireme"},
                )
                created.append((item["kind"], answer))
            self._give_owners(created)
        except BaseException as error:
            for kind, item in reversed(created):
                with suppress(ClusterRefused, ClusterUnreachable):
                    self._delete(kind, item["metadata"]["name"])
            if isinstance(error, ClusterRefused) and error.status == CONFLICT:
                raise UsageError(self._exists()) from error
            raise

    def observe(self) -> RunState:
        """The state of the run as the cluster tells it, with what it told before of pods that failed.

        Those of a JobSet are deleted when it starts again.
        """
        jobs = self._decisive()
        if not jobs:
            return observe(self.name, [], [])
        there = {pod["metadata"]["name"]: pod for pod in self._list("Pod")}
        self._failed_pods |= {
            name: pod for name, pod in there.items() if pod.get("status", {}).get("phase") == "Failed"
        }
        pods = [*(self._failed_pods | there).values()]
        state = observe(self.name, jobs, pods)
        if any(not pod.name for pod in state.pods) and not state.outcome:
            state = observe(self.name, jobs, pods, self._events(jobs))
        return state

    def observe_existing(self) -> RunState:
        """The state of a run that has to be there.

        Raises:
            UsageError: there is no such run.
        """
        state = self.observe()
        if state.is_gone:
            self._none()
        return state

    def unready_nodes(self) -> set[str] | None:
        """The nodes the cluster has lost, or None where we may not see nodes."""
        try:
            nodes = self.connection.request("GET", "/api/v1/nodes")["items"]
        except ClusterRefused as error:
            if error.status == FORBIDDEN:
                return None
            raise
        return {node["metadata"]["name"] for node in nodes if not _is_ready(node)}

    def logs(
        self, pod: str, container: str, *, is_followed: bool = False, since: str = "", tail_lines: int = 0
    ) -> Iterator[bytes]:
        """The lines of a container's log, each behind the time it was written at."""
        query = {"container": container, "timestamps": "true"}
        if is_followed:
            query["follow"] = "true"
        if since:
            query["sinceTime"] = since
        if tail_lines:
            query["tailLines"] = str(tail_lines)
        return self.connection.lines(f"{self._folder('Pod')}/{pod}/log", query)

    def stop(self) -> list[str]:
        """Suspends the run: its pods are told to end, and may save first. The objects that were suspended.

        Raises:
            UsageError: there is no such run, or its queue would start it again.
        """
        jobs = self._decisive()
        if not jobs:
            self._none()
        for job in jobs:
            queue = job["metadata"].get("labels", {}).get(QUEUE_LABEL)
            if queue:
                raise UsageError(
                    f"the run {self.name} belongs to the queue {queue}, which would start it again: type "
                    f"`trireme delete {self.name}`, or deactivate its workload, which `kubectl get workloads` names"
                )
            self._suspend(job)
        return [f"{job['kind'].lower()}/{job['metadata']['name']}" for job in jobs]

    def end_servers(self) -> None:
        """Has the parameter servers save and end, where their run is over and they do not know."""
        jobs = self._decisive()
        if any(job["kind"] == "JobSet" for job in jobs):
            # Its controller ends all pods together.
            return
        for job in jobs:
            if job["metadata"]["labels"].get(ROLE_LABEL) == "server" and not _has_ended(job):
                self._suspend(job)

    def delete(self) -> list[str]:
        """Deletes everything of the run; the names of what was there. Its pods are told to end.

        Raises:
            UsageError: there is nothing of that run.
        """
        found = [(kind, item["metadata"]["name"]) for kind in _KINDS for item in self._list(kind)]
        if not found:
            self._none()
        for kind, name in found:
            self._delete(kind, name)
        return [f"{kind} {name}" for kind, name in found]

    def _suspend(self, job: dict[str, Any]) -> None:
        path = f"{self._folder(job['kind'])}/{job['metadata']['name']}"
        self.connection.request("PATCH", path, {"spec": {"suspend": True}})

    def _decisive(self) -> list[dict[str, Any]]:
        """The objects that make the pods: the JobSet, else the Jobs."""
        return [dict(one, kind=kind) for kind in ("JobSet", "Job") for one in self._list(kind)]

    def _list(self, kind: str, query: dict[str, str] | None = None) -> list[dict[str, Any]]:
        query = query or {"labelSelector": f"{RUN_LABEL}={self.name}"}
        try:
            answer = self.connection.request("GET", self._folder(kind), query=query)
        except ClusterRefused as error:
            # Without its controller the cluster knows no JobSets; who may not see them, or Secrets, has made none.
            if error.status in {"JobSet": (NOT_FOUND, FORBIDDEN), "Secret": (FORBIDDEN,)}.get(kind, ()):
                return []
            raise
        items: list[dict[str, Any]] = answer["items"]
        return items

    def _events(self, jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        names = {job["metadata"]["name"] for job in jobs}
        try:
            events = self._list("Event", {"fieldSelector": "involvedObject.kind=Job,reason=FailedCreate"})
        except ClusterRefused as error:
            if error.status == FORBIDDEN:
                return []
            raise
        return [event for event in events if event["involvedObject"]["name"] in names]

    def _give_owners(self, created: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Makes the cluster delete what belongs to an object together with it."""
        owners = {f"{kind}/{item['metadata']['name']}": (kind, item) for kind, item in created}
        for kind, item in created:
            named = item["metadata"].get("annotations", {}).get(OWNER_ANNOTATION)
            if named not in owners:
                continue
            owner_kind, owner = owners[named]
            reference = {
                "apiVersion": owner["apiVersion"],
                "kind": owner_kind,
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
            }
            self.connection.request(
                "PATCH",
                f"{self._folder(kind)}/{item['metadata']['name']}",
                {"metadata": {"ownerReferences": [reference]}},
            )

    def _delete(self, kind: str, name: str) -> None:
        try:
            options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
            self.connection.request("DELETE", f"{self._folder(kind)}/{name}", options)
        except ClusterRefused as error:
            if error.status != NOT_FOUND:
                raise

    def _folder(self, kind: str) -> str:
        return _FOLDERS[kind].format(namespace=self.namespace)

    def _exists(self) -> str:
        return (
            f"there is a run {self.name} in the namespace {self.namespace} already: choose another --name, or type "
            f"`trireme delete {self.name}` first"
        )

    def _none(self) -> NoReturn:
        raise UsageError(
            f"there is no run {self.name} in the namespace {self.namespace}: `kubectl get jobs --all-namespaces "
            f"--selector {RUN_LABEL}` lists all runs"
        )


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _has_ended(job: dict[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions", ())
    return any(one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in conditions)
