"""Which worker keeps the others of all machines waiting, though no machine has seen one fail."""

from __future__ import annotations

from collections.abc import Iterable

from trireme.agent.messages import WorkerState
from trireme.agent.rules import Rules
from trireme.agent.seats import Seat
from trireme.launch.decision import Situation, WorkerView, stuck_workers


def culprits(seats: Iterable[Seat], rules: Rules, started_s: float, now_s: float) -> list[WorkerState]:
    """The workers for which others have waited too long, by the judgement of a launcher that sees them all.

    None while it is not known of every worker where it is.
    """
    seats = list(seats)
    if any(len(seat.states) < len(seat.ranks) for seat in seats):
        return []
    views = [
        WorkerView(state.rank, step=state.step, state=state.state, since_s=seat.states_s - state.for_s)
        for seat in seats
        for state in seat.states
    ]
    situation = Situation(views, now_s, started_s, timeout_s=rules.worker_timeout_s, grace_s=0.0)
    ranks = stuck_workers(situation)
    return [state for seat in seats for state in seat.states if state.rank in ranks]
