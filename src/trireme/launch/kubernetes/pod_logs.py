"""The logs of a run's pods, read while they are written: a file for each rank, and the chief's to the screen."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from trireme.errors import ClusterRefused, ClusterUnreachable
from trireme.launch.kubernetes.objects import NOT_FOUND, RunObjects
from trireme.launch.kubernetes.observation import FAILED, SUCCEEDED, PodState, RunState
from trireme.launch.kubernetes.pods import CONTAINER
from trireme.launch.progress_line import Progress, ScriptOutput

_RETRY_S = 1.0


def log_name(pod: PodState) -> str:
    """The file of a rank's output; pods that replace each other follow each other in it."""
    return f"{pod.role}-{pod.index}.log"


def read_log(objects: RunObjects, pod: PodState) -> Iterator[bytes]:
    """What a pod's script has written so far."""
    if not (pod.name and pod.is_started):
        return
    output = ScriptOutput()
    for line in objects.logs(pod.name, CONTAINER):
        yield output.feed(line.partition(b" ")[2])
    yield output.finish()


class PodLogs:
    """Follows the log of every pod from the moment it has one until it has ended.

    Args:
        objects: the run.
        log_dir: an existing folder for the files.
        write_chief: takes worker 0's output as it comes, on any thread.
    """

    def __init__(self, objects: RunObjects, log_dir: str, write_chief: Callable[[bytes], None]) -> None:
        self._objects = objects
        self._log_dir = Path(log_dir)
        self._write_chief = write_chief
        self._readers: dict[str, _Reader] = {}
        self._last_of_rank: dict[tuple[str, int], _Reader] = {}

    def update(self, state: RunState) -> None:
        """Begins with pods that have started, and learns which have ended."""
        for pod in (*state.earlier, *state.pods):
            if pod.name and pod.is_started and pod.name not in self._readers:
                self._begin(pod)
        alive = {pod.name for pod in state.pods if pod.phase not in (SUCCEEDED, FAILED)}
        for name, reader in self._readers.items():
            if name not in alive or state.outcome:
                reader.pod_ended.set()

    def progress(self, pod: PodState) -> Progress | None:
        """What the pod's agent told last."""
        reader = self._readers.get(pod.name)
        return reader.output.progress if reader else None

    def finish(self, timeout_s: float) -> list[str]:
        """Waits until the logs of the pods, which have ended, are read; the names of those that are not."""
        for reader in self._readers.values():
            reader.pod_ended.set()
        for reader in self._readers.values():
            reader.join(timeout_s)
        return [name for name, reader in self._readers.items() if reader.is_alive()]

    def _begin(self, pod: PodState) -> None:
        rank = (pod.role, pod.index)
        is_chief = rank == ("worker", 0)
        reader = _Reader(
            self._objects,
            pod,
            self._log_dir / log_name(pod),
            self._write_chief if is_chief else None,
            self._last_of_rank.get(rank),
        )
        self._readers[pod.name] = self._last_of_rank[rank] = reader
        reader.start()


class _Reader(threading.Thread):
    """Reads one pod's log to its end, however often the connection breaks."""

    def __init__(
        self,
        objects: RunObjects,
        pod: PodState,
        path: Path,
        write: Callable[[bytes], None] | None,
        before: "_Reader | None",
    ) -> None:
        super().__init__(name=f"trireme-log-{pod.name}", daemon=True)
        self.output = ScriptOutput()
        self.pod_ended = threading.Event()
        self._objects, self._pod, self._path, self._write, self._before = objects, pod, path, write, before
        self._last_time = b""
        self._is_there = True

    def run(self) -> None:
        if self._before is not None:
            self._before.join()
        with self._path.open("ab") as file:
            while self._is_there:
                was_over, before = self.pod_ended.is_set(), self._last_time
                is_whole = self._read(file.write)
                # An answer that broke off may look like one that ended: the last one brings nothing more.
                if was_over and is_whole and self._last_time == before:
                    break
                self.pod_ended.wait(_RETRY_S)
            self._pass_on(self.output.finish(), file.write)

    def _read(self, write: Callable[[bytes], object]) -> bool:
        """Reads on where it stopped. Whether the answer came to its end."""
        try:
            since = self._last_time.decode()
            for line in self._objects.logs(self._pod.name, CONTAINER, is_followed=True, since=since):
                time, _, text = line.partition(b" ")
                # The server repeats the second in which the last answer ended.
                if time > self._last_time:
                    self._last_time = time
                    self._pass_on(self.output.feed(text), write)
        except ClusterUnreachable:
            return False
        except ClusterRefused as error:
            self._is_there = error.status != NOT_FOUND
            return False
        return True

    def _pass_on(self, content: bytes, write: Callable[[bytes], object]) -> None:
        if content:
            write(content)
            if self._write is not None:
                self._write(content)
