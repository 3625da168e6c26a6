"""The words in which agents tell people what happens to a run."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from trireme.agent.messages import WorkerState
from trireme.agent.rules import Identity, Rules
from trireme.launch import report
from trireme.recovery.policy import Decision, Restart

NAME = "trireme: "


def agent(index: int, place: str) -> str:
    return f"agent {index} ({place})" if place else f"agent {index}"


def absent(index: int, place: str, reason: str) -> str:
    """An agent that is not there."""
    return agent(index, place) + (f", which was lost: {reason}" if reason else ", which has not come yet")


def busy(index: int, place: str) -> str:
    """An agent that is there."""
    return f"{agent(index, place)}, which is there but not ready: its workers have not all ended"


def waiting_for(missing: Sequence[str]) -> str:
    return f"{NAME}waiting for {'; '.join(missing)}\n"


def waited_in_vain(timeout_s: float, missing: Sequence[str]) -> str:
    return (
        f"{NAME}waited {timeout_s:g} s in vain for {'; '.join(missing)}\n"
        f"{NAME}TRIREME_RENDEZVOUS_TIMEOUT_S sets for how long agents wait for each other\n"
    )


def lost(index: int, place: str, reason: str) -> str:
    return f"{NAME}{agent(index, place)} was lost: {reason}\n"


def chief_was_lost() -> str:
    return f"{NAME}agent 0, the chief's, was lost in the last generation\n"


def told_to_end(exit_code: int) -> str:
    """What made an agent leave."""
    return f"it was told to end ({signal.Signals(exit_code - 128).name})"


def left(index: int, place: str, exit_code: int) -> str:
    return f"{NAME}{agent(index, place)} has left: {told_to_end(exit_code)}\n"


def stuck(workers: Sequence[WorkerState], timeout_s: float) -> str:
    """Which workers keep the others waiting."""
    places = ", ".join(
        f"worker {worker.rank} ({'before its first step' if worker.step is None else f'step {worker.step}'})"
        for worker in workers
    )
    return (
        f"{NAME}stuck: {places}\n"
        f"{NAME}others waited for that; no wait may take longer than the time-out of {timeout_s:g} s (--timeout)\n"
    )


def decided(decision: Decision, rules: Rules) -> str:
    """What follows from a failure; nothing needs to be said where restarts were not asked for."""
    if isinstance(decision, Restart):
        return report.restarting(decision, rules.backup)
    return report.given_up(decision) if rules.restarts.max_restarts else ""


def refused(rendezvous: str, reason: str) -> str:
    return f"{NAME}the rendezvous at {rendezvous} refuses this agent: {reason}\n"


def not_there_yet(rendezvous: str, reason: str) -> str:
    return f"{NAME}not at the rendezvous at {rendezvous} yet: {reason}; trying again\n"


def link_lost(rendezvous: str, reason: str) -> str:
    return f"{NAME}lost the rendezvous at {rendezvous} (agent 0, the chief's): {reason}\n"


def no_rendezvous(timeout_s: float, rendezvous: str, reason: str) -> str:
    return (
        f"{NAME}waited {timeout_s:g} s in vain for the rendezvous at {rendezvous} (agent 0, the chief's): {reason}\n"
        f"{NAME}TRIREME_RENDEZVOUS_TIMEOUT_S sets for how long agents wait for each other\n"
    )


def begins(identity: Identity, rules: Rules) -> str:
    """An agent's first line."""
    return (
        f"{NAME}{agent(identity.index, identity.place)} of {rules.num_agents}, run {rules.run_id}, rendezvous at "
        f"{identity.rendezvous}\n"
    )


def starts(generation: int, ranks: range, num_workers: int, log_dir: str) -> str:
    """That the workers of this agent start."""
    here = f"worker {ranks.start}" if len(ranks) == 1 else f"workers {ranks.start} to {ranks.stop - 1}"
    return f"{NAME}generation {generation}: {here} of {num_workers} started here, output in {log_dir}\n"
