"""Which of several agents' failures is the one behind the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trireme.agent.messages import Ending
from trireme.launch.decision import SETTLE_FOR_A_CAUSE_S, SETTLE_S, distance_from_cause
from trireme.recovery.policy import FailedAttempt


def first_cause(endings: Sequence[Ending]) -> Ending:
    """The ending that explains the others; among equals the one that was told first.

    As within one machine: who only lost a peer explains nothing; who was killed, or disappeared with its
    machine, comes before the exceptions that this raised elsewhere.
    """
    return min(endings, key=lambda ending: _order(ending.attempt))


def settle_s(endings: Iterable[Ending]) -> float:
    """How long the first failure that was told waits for others, of which one may be its cause."""
    has_cause = any(distance_from_cause(ending.attempt) == 0 for ending in endings)
    return SETTLE_S if has_cause else SETTLE_FOR_A_CAUSE_S


def _order(attempt: FailedAttempt) -> tuple[int, bool]:
    has_word = bool(attempt.exception) or attempt.is_stuck
    is_killed = not has_word and (attempt.exit_code is None or attempt.exit_code > 128)
    return distance_from_cause(attempt), not is_killed
