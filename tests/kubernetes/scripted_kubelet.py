"""A kubelet whose pods do what a test says, in threads."""

import threading
from collections.abc import Callable
from typing import Any

from tests.kubernetes.control_plane import ControlPlane, Log
from tests.kubernetes.job_controller import INDEX_KEY


class Pod:
    """One life of a rank, as a test's function sees it.

    Attributes:
        role: `"worker"` or `"server"`.
        index: its index.
        attempt: how many pods of the rank came before.
        told_to_end: set when it is to end.
    """

    def __init__(self, plane: ControlPlane, item: dict[str, Any], attempt: int) -> None:
        self.plane, self.item, self.attempt = plane, item, attempt
        self.name = item["metadata"]["name"]
        self.role = item["metadata"]["labels"]["trireme.dev/role"]
        self.index = int(item["metadata"]["labels"][INDEX_KEY])
        self.told_to_end = threading.Event()

    def run(self, node: str = "") -> None:
        self.plane.pod_runs(self.name, node or f"node-{self.index}")

    def say(self, text: str | bytes) -> None:
        self.log.write(text if isinstance(text, bytes) else f"{text}\n".encode())

    @property
    def log(self) -> Log:
        return self.plane.logs[self.name]

    def end(self, exit_code: int, message: str = "", **status: Any) -> None:
        self.plane.pod_ended(self.name, exit_code, message, **status)


class ScriptedKubelet:
    """Calls `life(pod)` in a thread of its own for each pod."""

    def __init__(self, life: Callable[[Pod], None]) -> None:
        self._life = life
        self._pods: dict[str, Pod] = {}
        self._attempts: dict[tuple[str, int], int] = {}

    def start(self, plane: ControlPlane, item: dict[str, Any]) -> None:
        pod = Pod(plane, item, 0)
        pod.attempt = self._attempts.get((pod.role, pod.index), 0)
        self._attempts[pod.role, pod.index] = pod.attempt + 1
        self._pods[pod.name] = pod
        threading.Thread(target=self._live, args=(pod,), daemon=True).start()

    def stop(self, plane: ControlPlane, item: dict[str, Any]) -> None:
        self._pods[item["metadata"]["name"]].told_to_end.set()

    def _live(self, pod: Pod) -> None:
        self._life(pod)
