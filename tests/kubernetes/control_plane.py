"""An API server on loopback with a Job controller behind it: what `trireme run --on kubernetes` talks to in tests.

It keeps objects, selects by label, applies merge patches, refuses what the schemas of Kubernetes refuse, deletes
what belongs to what is deleted, and follows logs. A kubelet that a test brings decides what the pods do.
It is a stand-in: no real API server can be had from the registries that the tests may use.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

from tests.kubernetes.job_controller import History, reconcile

KINDS = {
    ("api/v1", "services"): "Service",
    ("api/v1", "configmaps"): "ConfigMap",
    ("api/v1", "secrets"): "Secret",
    ("api/v1", "pods"): "Pod",
    ("api/v1", "events"): "Event",
    ("api/v1", "nodes"): "Node",
    ("apis/batch/v1", "jobs"): "Job",
    ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"): "JobSet",
}
PATH = re.compile(
    r"/(?P<group>api/v1|apis/batch/v1|apis/jobset.x-k8s.io/v1alpha2)(/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)(/(?P<name>[^/]+))?"
    r"(?P<log>/log)?"
)
Object = dict[str, Any]


class Refusal(Exception):
    """An answer with an HTTP status that is no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Kubelet(Protocol):
    """What runs the pods."""

    def start(self, plane: ControlPlane, pod: Object) -> None: ...
    def stop(self, plane: ControlPlane, pod: Object) -> None: ...


class Log:
    """What a container has written, line by line, each with its time."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, bytes]] = []
        self.is_closed = False
        self._changed = threading.Condition()

    def write(self, line: bytes) -> None:
        with self._changed:
            self.lines.append((datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z"), line))
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def wait_for_more(self, than: int) -> bool:
        """Waits for a line after the first `than`; False when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.lines) > than or self.is_closed, timeout=60)
            return len(self.lines) > than


class ControlPlane:
    """The server; to be used in a `with` block.

    Attributes:
        url: where it listens.
        requests: (method, path) of every request so far.
        has_jobsets: whether JobSet is installed; nothing here makes Jobs of one.
        refuse: asked before each request; may raise `Refusal`, or any OSError to break the connection.
    """

    def __init__(self, kubelet: Kubelet, backoff_s: float = 0.05) -> None:
        self.kubelet = kubelet
        self.has_jobsets = False
        self.requests: list[tuple[str, str]] = []
        self.authorizations: set[str | None] = set()
        self.refuse: Callable[[str, str], None] = lambda method, path: None
        self.lock = threading.RLock()
        self.logs: dict[str, Log] = {}
        self._backoff_s = backoff_s
        self._objects: dict[tuple[str, str], Object] = {}
        self._histories: dict[str, History] = {}
        self._changed = threading.Event()
        self._is_over = False
        self._version = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ControlPlane:
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,)),
            threading.Thread(target=self._control),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._changed.set()
        for pod in self.list("Pod"):
            self.kubelet.stop(self, pod)
        for log in self.logs.values():
            log.close()
        self._server.shutdown()
        for thread in self._threads:
            thread.join()
        self._server.server_close()

    def kubeconfig(self, namespace: str = "research") -> str:
        """A configuration with which clients find and tell themselves to this server."""
        context = {"cluster": "here", "user": "me", "namespace": namespace}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "here", "cluster": {"server": self.url}}],
                "users": [{"name": "me", "user": {"token": "secret"}}],
                "contexts": [{"name": "here", "context": context}],
                "current-context": "here",
            }
        )

    def list(self, kind: str, labels: dict[str, str] | None = None) -> list[Object]:
        wanted = (labels or {}).items()
        with self.lock:
            found = [item for (one, _), item in self._objects.items() if one == kind]
            return [
                json.loads(json.dumps(item))
                for item in found
                if wanted <= item["metadata"].get("labels", {}).items()
            ]

    def get(self, kind: str, name: str) -> Object:
        with self.lock:
            if (kind, name) not in self._objects:
                raise Refusal(404, f'{kind.lower()}s "{name}" not found')
            return json.loads(json.dumps(self._objects[kind, name]))

    def create(self, item: Object) -> Object:
        name = item["metadata"]["name"]
        with self.lock:
            if (item["kind"], name) in self._objects:
                raise Refusal(409, f'{item["kind"].lower()}s "{name}" already exists')
            item["metadata"] |= {
                "uid": str(uuid.uuid4()),
                "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
            self._store(item)
        if item["kind"] == "Pod":
            self.logs[name] = Log()
            self.kubelet.start(self, item)
        return self.get(item["kind"], name)

    def patch(self, kind: str, name: str, patch: Object) -> Object:
        """Merges a patch into an object: also how a kubelet tells what became of a pod."""
        with self.lock:
            item = self.get(kind, name)
            _merge(item, patch)
            self._store(item)
            return item

    def delete(self, kind: str, name: str) -> None:
        """Deletes an object and what it owns. A pod that runs is told to end first, and goes when it has."""
        with self.lock:
            item = self.get(kind, name)
            phase = item.get("status", {}).get("phase")
            if kind == "Pod" and phase in ("Pending", "Running"):
                if "deletionTimestamp" not in item["metadata"]:
                    stamp = datetime.fromtimestamp(time.time() + 30, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                    self.patch(kind, name, {"metadata": {"deletionTimestamp": stamp}})
                    threading.Thread(target=self.kubelet.stop, args=(self, item), daemon=True).start()
                return
            del self._objects[kind, name]
            uid = item["metadata"]["uid"]
            owned = [
                (one, other["metadata"]["name"])
                for (one, _), other in self._objects.items()
                if any(owner["uid"] == uid for owner in other["metadata"].get("ownerReferences", ()))
            ]
        for one, other in owned:
            self.delete(one, other)
        self._changed.set()

    def pod_ended(self, name: str, exit_code: int, message: str = "", **status: Any) -> None:
        """For a kubelet: the container of a pod has ended."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ended = {"exitCode": exit_code, "finishedAt": now, "startedAt": now, "message": message}
        ended["reason"] = status.pop("reason", "Error" if exit_code else "Completed")
        with self.lock:
            if ("Pod", name) not in self._objects:
                return
            self.logs[name].close()
            containers = [{"name": "main", "state": {"terminated": ended}}]
            phase = "Failed" if exit_code else "Succeeded"
            pod = self.patch(
                "Pod", name, {"status": {"phase": phase, "containerStatuses": containers, **status}}
            )
        if "deletionTimestamp" in pod["metadata"]:
            self.reconcile()
            self.delete("Pod", name)

    def pod_runs(self, name: str, node: str) -> None:
        """For a kubelet: the container of a pod has started."""
        started = {"running": {"startedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}}
        status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": started}]}
        self.patch("Pod", name, {"spec": {"nodeName": node}, "status": status})

    def reconcile(self) -> float | None:
        """A round of the Job controller; in how many seconds it has something to do, at the latest."""
        wakes = []
        with self.lock:
            for job in self.list("Job"):
                uid, name = job["metadata"]["uid"], job["metadata"]["name"]
                pods = [
                    pod for pod in self.list("Pod") if pod["metadata"]["ownerReferences"][0]["uid"] == uid
                ]
                history = self._histories.setdefault(uid, History())
                decision = reconcile(job, pods, history, time.monotonic(), self._backoff_s)
                if decision.status != job.get("status"):
                    self.patch("Job", name, {"status": decision.status})
                for pod in decision.delete:
                    self.delete("Pod", pod)
                for pod in decision.create:
                    self.create(pod)
                wakes += [decision.wake_s] if decision.wake_s is not None else []
        return min(wakes, default=None)

    def _control(self) -> None:
        wake_s = None
        while not self._is_over:
            self._changed.wait(wake_s)
            self._changed.clear()
            if not self._is_over:
                wake_s = self.reconcile()

    def _store(self, item: Object) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._objects[item["kind"], item["metadata"]["name"]] = json.loads(json.dumps(item))
        self._changed.set()


def _handler(plane: ControlPlane) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            plane.requests.append((self.command, parts.path))
            plane.authorizations.add(self.headers.get("Authorization"))
            try:
                plane.refuse(self.command, parts.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                self.carry_out(parts.path, query, json.loads(body) if body else {})
            except Refusal as refusal:
                self.send(refusal.status, {"kind": "Status", "message": str(refusal), "code": refusal.status})
            except OSError:
                self.close_connection = True

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def carry_out(self, path: str, query: dict[str, str], body: Object) -> None:
            match = PATH.fullmatch(path)
            if match is None or (match["group"], match["plural"]) not in KINDS:
                raise Refusal(404, "the server could not find the requested resource")
            kind, name = KINDS[match["group"], match["plural"]], match["name"]
            if kind == "JobSet" and not plane.has_jobsets:
                raise Refusal(404, "the server could not find the requested resource")
            if match["log"]:
                self.send_log(name, query)
            elif self.command == "GET":
                self.send(
                    200, plane.get(kind, name) if name else {"kind": "List", "items": selected(kind, query)}
                )
            elif self.command == "POST":
                body["metadata"].setdefault("namespace", match["namespace"])
                refuse_invalid(body, query)
                self.send(201, plane.create(body))
            elif self.command == "PATCH":
                assert self.headers["Content-Type"] == "application/merge-patch+json"
                self.send(200, plane.patch(kind, name, body))
            else:
                plane.delete(kind, name)
                self.send(200, {"kind": "Status", "status": "Success"})

        def send(self, status: int, answer: Object) -> None:
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def send_log(self, name: str, query: dict[str, str]) -> None:
            plane.get("Pod", name)
            log = plane.logs[name]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            since = query.get("sinceTime", "")[:19]
            sent = max(0, len(log.lines) - int(query["tailLines"])) if "tailLines" in query else 0
            while sent < len(log.lines) or ("follow" in query and log.wait_for_more(sent)):
                stamp, line = log.lines[sent]
                sent += 1
                if stamp[:19] >= since:
                    plane.refuse("LINE", f"{name}/{sent}")
                    content = stamp.encode() + b" " + line
                    self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    def selected(kind: str, query: dict[str, str]) -> list[Object]:
        labels = dict(part.split("=") for part in filter(None, query.get("labelSelector", "").split(",")))
        return plane.list(kind, labels)

    return Handler


def refuse_invalid(item: Object, query: dict[str, str]) -> None:
    """What a real server refuses when it is asked to be strict. Of JobSets there is no schema here."""
    if item["kind"] == "JobSet":
        return
    try:
        kubernetes_validate.validate(item, "1.36", strict=query.get("fieldValidation") == "Strict")
    except kubernetes_validate.ValidationError as error:
        raise Refusal(
            422, f"{item['kind']} {item['metadata']['name']!r} is invalid: {error.message}"
        ) from error


def _merge(item: Object, patch: Object) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(item.get(key), dict):
            _merge(item[key], value)
        elif value is None:
            item.pop(key, None)
        else:
            item[key] = value
