"""Whether a run has ended and how, and what a person should know while it has not. Pure functions of its state."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from trireme.errors import EXIT_PEER_LOST, EXIT_RESTART_BUDGET_USED_UP, EXIT_TERMINATED
from trireme.launch.kubernetes.observation import (
    FAILED,
    MISSING,
    PENDING,
    RUNNING,
    SUCCEEDED,
    TERMINATING,
    PodState,
    RunState,
)

# What is still there so long after it had to be gone is not going.
STUCK_AFTER_S = 30.0
_LISTED = 8
_LAST_LINES = 20
# Ends that follow from another's: its headline is elsewhere.
_COLLATERAL = (EXIT_PEER_LOST, EXIT_RESTART_BUDGET_USED_UP, EXIT_TERMINATED, 0, None)


@dataclass(frozen=True)
class Verdict:
    """How a run ended.

    Attributes:
        exit_code: what `trireme run` ends with.
        lines: what to tell, the first failure first; empty for a run that went well.
    """

    exit_code: int
    lines: tuple[str, ...] = ()


def judge(state: RunState) -> Verdict | None:
    """How the run ended, or None while it goes on."""
    if state.is_gone:
        return Verdict(1, (f"the run {state.name} was deleted",))
    if state.outcome == "Complete":
        return Verdict(0)
    if state.outcome == "Failed":
        return _failure(state)
    if state.is_suspended and not state.queue and not any(_is_alive(pod) for pod in state.pods):
        return Verdict(EXIT_TERMINATED, (f"the run {state.name} was stopped",))
    return None


def hints(state: RunState, now: float, unready_nodes: Collection[str] | None = ()) -> list[str]:
    """What keeps a run from going on, and what to type.

    Args:
        state: the run.
        now: seconds of the epoch.
        unready_nodes: nodes that the cluster has lost; None where we may not see nodes.
    """
    if state.is_gone or state.outcome:
        return []
    if state.is_suspended:
        return _suspended(state)
    return [*_absent(state), *_stuck(state, now, unready_nodes)]


def describe(pod: PodState, num_pods: int) -> str:
    """A pod as a person speaks of it."""
    place = f"pod {pod.name}" + (f" on {pod.node}" if pod.node else "") if pod.name else "no pod"
    return f"{pod.role} {pod.index} of {num_pods} ({place})"


def _failure(state: RunState) -> Verdict:
    decisive = _decisive(state)
    root = decisive if _is_root(decisive) else _first_root(state)
    exit_code = state.decisive_code or (decisive and decisive.exit_code) or (root and root.exit_code) or 1
    lines = [*_headline(state, root or decisive), *_followers(state, root)]
    if exit_code == EXIT_RESTART_BUDGET_USED_UP:
        lines.append("it was restarted as often as it may be")
    lines.append(f"the cluster says: {state.outcome_reason}: {state.outcome_message}")
    return Verdict(exit_code, tuple(lines))


def _decisive(state: RunState) -> PodState | None:
    """The pod whose end made the controller give up: named by it, or of a rank without restarts left."""
    for pod in (*state.pods, *state.earlier):
        if state.decisive_pod and pod.name == state.decisive_pod:
            return pod
    spent = [pod for pod in _failed(state) if (pod.role, pod.index) in state.failed_indexes]
    return min(_last_of_each_rank(spent), key=_when, default=None)


def _first_root(state: RunState) -> PodState | None:
    """The first among the failures that nothing made up for."""
    return min(filter(_is_root, _last_of_each_rank(_failed(state))), key=_when, default=None)


def _failed(state: RunState) -> list[PodState]:
    return [pod for pod in (*state.earlier, *state.pods) if pod.phase == FAILED]


def _last_of_each_rank(pods: Iterable[PodState]) -> list[PodState]:
    return list({(pod.role, pod.index): pod for pod in sorted(pods, key=_when)}.values())


def _is_root(pod: PodState | None) -> bool:
    return pod is not None and pod.exit_code not in _COLLATERAL and not pod.is_disrupted


def _when(pod: PodState) -> float:
    return float("inf") if pod.finished_at is None else pod.finished_at


def _is_alive(pod: PodState) -> bool:
    return pod.phase in (PENDING, RUNNING, TERMINATING)


def _headline(state: RunState, root: PodState | None) -> list[str]:
    if root is None:
        return [f"the run {state.name} failed, and no pod says why"]
    lines = [f"{describe(root, state.num_pods(root.role))} {_how_it_ended(root)}"]
    return lines + [f"    {line}" for line in root.last_words.rstrip().splitlines()[-_LAST_LINES:]]


def _how_it_ended(pod: PodState) -> str:
    if pod.reason == "OOMKilled":
        return f"ran out of memory and was killed (exit code {pod.exit_code}): ask for more with --memory"
    if pod.exit_code is not None and pod.exit_code > 128:
        return f"was ended by signal {pod.exit_code - 128} (exit code {pod.exit_code})"
    return f"exited with code {pod.exit_code}"


def _followers(state: RunState, root: PodState | None) -> list[str]:
    later = [pod for pod in _last_of_each_rank(_failed(state)) if pod is not root and _is_root(pod)]
    return [
        f"then {describe(pod, state.num_pods(pod.role))} {_how_it_ended(pod)}"
        for pod in sorted(later, key=_when)
    ]


def _suspended(state: RunState) -> list[str]:
    if state.queue:
        return [f"waits in the queue {state.queue}: `kubectl get workloads` says for what"]
    return ["is being stopped: its pods may save until their grace period is over"]


def _absent(state: RunState) -> list[str]:
    """Who has not started, and the cluster's own words for it."""
    absent = [pod for pod in state.pods if pod.phase in (MISSING, PENDING) and pod.reason]
    lines = []
    for reason in dict.fromkeys(pod.reason for pod in absent):
        names = _enumerated([pod for pod in absent if pod.reason == reason])
        lines.append(f"{names} cannot start: {reason}")
    present = sum(pod.phase in (RUNNING, SUCCEEDED) for pod in state.pods)
    if lines and present:
        lines.append(
            f"{present} of {len(state.pods)} pods run and wait for the others: they give up after their time-out, "
            f"or type `trireme delete {state.name}`"
        )
    return lines


def _stuck(state: RunState, now: float, unready_nodes: Collection[str] | None) -> list[str]:
    """Pods that should be gone, which the Job controller does not replace before they are."""
    lines = []
    for pod in state.pods:
        is_overdue = pod.deleted_at is not None and now - pod.deleted_at > STUCK_AFTER_S
        if (
            pod.phase != TERMINATING
            or not is_overdue
            or (unready_nodes is not None and pod.node not in unready_nodes)
        ):
            continue
        lost = "which is not ready" if unready_nodes is not None else "which seems lost"
        lines.append(
            f"{describe(pod, state.num_pods(pod.role))} is terminating on a node, {lost}, and is replaced only when "
            f"that is known to be gone. If {pod.node} is switched off, type "
            f"`kubectl taint nodes {pod.node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`, or "
            f"`kubectl delete node {pod.node}`; it does not count as a failure"
        )
    return lines


def _enumerated(pods: Sequence[PodState]) -> str:
    """Pods of one reason by role and index: `workers 2, 3`."""
    parts = []
    for role in dict.fromkeys(pod.role for pod in pods):
        numbers = [str(pod.index) for pod in pods if pod.role == role]
        more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
        parts.append(f"{role}{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:_LISTED])}{more}")
    return ", ".join(parts)
