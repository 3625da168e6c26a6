"""How far the pods of a run are, read once from the ends of their logs."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from trireme.errors import ClusterRefused
from trireme.launch.kubernetes.objects import RunObjects
from trireme.launch.kubernetes.observation import PodState, RunState
from trireme.launch.kubernetes.pods import CONTAINER
from trireme.launch.progress_line import Progress, parse

# An agent tells its progress every few seconds, also when the script prints a lot.
_TAIL_LINES = 400
_AT_ONCE = 16


def last_progress(objects: RunObjects, state: RunState) -> dict[PodState, Progress]:
    """By pod, what its agent told last; pods that have told nothing are left out."""
    pods = [pod for pod in state.pods if pod.is_started]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda pod: _last(objects, pod), pods)
        return {pod: progress for pod, progress in zip(pods, found, strict=True) if progress is not None}


def _last(objects: RunObjects, pod: PodState) -> Progress | None:
    last = None
    # A pod may be deleted between the list and its log.
    with suppress(ClusterRefused):
        for line in objects.logs(pod.name, CONTAINER, tail_lines=_TAIL_LINES):
            last = parse(line.partition(b" ")[2]) or last
    return last
