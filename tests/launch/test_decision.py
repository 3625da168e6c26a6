"""What the supervisor decides, case by case."""

import signal

import pytest

from trireme.cluster.board import RUNNING, STARTING, WAITING
from trireme.launch.decision import (
    DONE,
    FAILED,
    INTERRUPTED,
    RECALLED,
    SETTLE_FOR_A_CAUSE_S,
    SETTLE_S,
    STUCK,
    TIME_LIMIT,
    Forward,
    Outcome,
    Situation,
    Wait,
    WorkerView,
    decide,
    rank_failures,
    stuck_workers,
)
from trireme.launch.failure_file import Failure

NOW = 1000.0
TIMEOUT = 100.0
LONG_AGO, JUST_NOW = NOW - 99.0, NOW - 1.0


def failure(rank: int, code: int = 1, when: float = 0.0, exception: str = "ValueError") -> Failure:
    return Failure(rank, when, exception, "bad", "Traceback ...", code)


def worker(rank: int, state: str = RUNNING, since_s: float = JUST_NOW, **fields) -> WorkerView:
    return WorkerView(rank, pid=100 + rank, state=state, since_s=since_s, **fields)


def ended(rank: int, code: int = 0, failed: Failure | None = None) -> WorkerView:
    return worker(rank, exit_code=code, failure=failed)


def situation(*workers: WorkerView, **fields) -> Situation:
    defaults = {"now_s": NOW, "started_s": 0.0, "timeout_s": TIMEOUT, "grace_s": 10.0}
    return Situation(workers, **{**defaults, **fields})


def test_a_run_goes_on_until_all_workers_have_ended():
    assert decide(situation(worker(0), worker(1))) == Wait()
    assert decide(situation(worker(0), ended(1))) == Wait()
    done = decide(situation(ended(0), ended(1)))
    assert (done.kind, done.exit_code) == (DONE, 0)


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        # The earliest is the headline,
        ([failure(0, when=2.0), failure(1, when=1.0)], 1),
        # but a lost peer is never why a run failed,
        ([failure(0, 75, when=1.0, exception="PeerLost"), failure(1, 3, when=2.0)], 1),
        # nor is a runtime's abort without a word, which answers another's death,
        ([failure(0, 134, when=1.0, exception=""), failure(1, 3, when=2.0)], 1),
        ([failure(0, 134, when=1.0, exception=""), failure(1, 75, when=2.0)], 0),
        # while other signals explain themselves.
        ([failure(0, 137, when=2.0, exception=""), failure(1, 75, when=1.0)], 0),
        # A peer can raise before the kill is even seen,
        ([failure(0, 139, when=2.0, exception=""), failure(1, 1, when=1.0)], 0),
        # while one that left on its own is no earlier than it was seen.
        ([failure(0, 9, when=2.0, exception=""), failure(1, 1, when=1.0)], 1),
        ([failure(0, 75, when=2.0), failure(1, 75, when=1.0)], 1),
    ],
)
def test_the_failure_that_explains_the_others_comes_first(failures, first):
    assert rank_failures(failures)[0].rank == first


def test_a_failure_ends_the_run_with_its_code_once_the_others_had_time_to_tell_theirs():
    workers = (ended(0, 3, failure(0, 3)), worker(1))
    assert decide(situation(*workers, failed_s=NOW)) == Wait()
    assert decide(situation(*workers, failed_s=NOW - SETTLE_S + 0.01)) == Wait()
    outcome = decide(situation(*workers, failed_s=NOW - SETTLE_S))
    assert (outcome.kind, outcome.exit_code, outcome.failures[0].rank) == (FAILED, 3, 0)


def test_with_everybody_gone_there_is_nothing_to_wait_for():
    outcome = decide(
        situation(ended(0, 75, failure(0, 75)), ended(1, 9, failure(1, 9, when=5)), failed_s=NOW)
    )
    assert (outcome.exit_code, [one.rank for one in outcome.failures]) == (9, [1, 0])


def test_a_worker_that_said_it_failed_counts_before_it_has_ended():
    outcome = decide(situation(worker(0, failure=failure(0, 4)), ended(1), failed_s=NOW))
    assert (outcome.kind, outcome.exit_code) == (FAILED, 4)


def test_a_lost_peer_is_waited_for_longer_and_then_the_silent_ones_are_named():
    lost = ended(0, 75, failure(0, 75))
    stopped, running, waiting = worker(1, stopped_s=JUST_NOW), worker(2), worker(3, WAITING)
    assert decide(situation(lost, stopped, failed_s=NOW - SETTLE_S)) == Wait()
    when = NOW - SETTLE_FOR_A_CAUSE_S
    assert decide(situation(lost, stopped, running, waiting, failed_s=when)).culprits == (1,)
    outcome = decide(situation(lost, running, waiting, failed_s=when))
    assert (outcome.culprits, outcome.exit_code) == ((2,), 75)


@pytest.mark.parametrize(
    ("workers", "culprits"),
    [
        # Nobody waits, or not for long.
        ([worker(0), worker(1)], ()),
        ([worker(0, STARTING, LONG_AGO), worker(1, RUNNING, LONG_AGO)], ()),
        ([worker(0, WAITING, JUST_NOW), worker(1)], ()),
        # One waits in vain for the one that does not come.
        ([worker(0, WAITING, LONG_AGO), worker(1)], (1,)),
        ([worker(0, WAITING, LONG_AGO), worker(1, STARTING, LONG_AGO)], (1,)),
        ([worker(0), worker(1, WAITING, LONG_AGO), worker(2)], (0, 2)),
        # Of several absent ones, those that a signal holds.
        ([worker(0), worker(1, WAITING, LONG_AGO), worker(2, stopped_s=JUST_NOW)], (2,)),
        # Stopped in the middle of a wait.
        ([worker(0, WAITING, LONG_AGO), worker(1, WAITING, LONG_AGO, stopped_s=JUST_NOW)], (1,)),
        # The second has only just arrived: they are about to go on.
        ([worker(0, WAITING, LONG_AGO), worker(1, WAITING, JUST_NOW)], ()),
        # Stopped for long: whoever does not say that he waits for it will.
        ([worker(0), worker(1, stopped_s=LONG_AGO)], (1,)),
        ([worker(0), worker(1, stopped_s=JUST_NOW)], ()),
        # A run of one is stopped by somebody who knows why.
        ([worker(0, stopped_s=LONG_AGO)], ()),
        # One has left for good.
        ([worker(0, WAITING, LONG_AGO), ended(1)], (1,)),
        # All wait: the one that is behind, else everybody.
        ([worker(0, WAITING, LONG_AGO, step=5), worker(1, WAITING, LONG_AGO, step=4)], (1,)),
        ([worker(0, WAITING, LONG_AGO, step=5), worker(1, WAITING, LONG_AGO, step=5)], (0, 1)),
        ([worker(0, WAITING, LONG_AGO, step=0), worker(1, WAITING, LONG_AGO)], (1,)),
    ],
)
def test_stuck(workers, culprits):
    assert stuck_workers(situation(*workers)) == culprits
    expected = STUCK if culprits else None
    assert getattr(decide(situation(*workers)), "kind", None) == expected


def test_time_in_suspension_is_no_waiting():
    workers = [worker(0, WAITING, LONG_AGO), worker(1)]
    assert stuck_workers(situation(*workers, started_s=NOW - 1.0)) == ()


def test_the_missing_one_may_be_on_another_machine():
    workers = [worker(0, WAITING, LONG_AGO, step=5), worker(1, WAITING, LONG_AGO, step=5)]
    assert stuck_workers(situation(*workers, is_whole_run=False)) == ()


def test_the_verdict_comes_within_the_timeout():
    assert stuck_workers(situation(worker(0, WAITING, NOW - TIMEOUT), worker(1))) == (1,)


def test_a_time_limit_names_who_still_runs():
    assert decide(situation(worker(0), ended(1), time_limit_s=NOW + 1)) == Wait()
    outcome = decide(situation(worker(0), ended(1), time_limit_s=NOW - 1))
    assert (outcome.kind, outcome.culprits) == (TIME_LIMIT, (0,))
    assert outcome.exit_code != 0


@pytest.mark.parametrize(
    ("workers", "kind", "exit_code"),
    [
        ([worker(0), worker(1)], RECALLED, 75),
        ([worker(0), ended(1)], RECALLED, 75),
        # They ended well before that was known.
        ([ended(0), ended(1)], DONE, 0),
        # A failure that is seen by then is told, and nobody waits for another one.
        ([worker(0), ended(1, 1, failure(1, 3))], FAILED, 3),
        ([worker(0), ended(1, 75, failure(1, 75))], FAILED, 75),
    ],
)
def test_workers_that_are_called_off_end_at_once(workers, kind, exit_code):
    recalled = decide(situation(*workers, failed_s=NOW, is_recalled=True))
    assert (recalled.kind, recalled.exit_code, recalled.culprits) == (kind, exit_code, ())


def test_who_is_called_off_and_interrupted_still_has_time_to_save():
    given = {"signals": [signal.SIGTERM], "signalled_s": NOW, "is_recalled": True}
    assert decide(situation(worker(0), **given)) == Forward(signal.SIGTERM)
    assert decide(situation(worker(0), is_forwarded=True, **given)) == Wait()


def test_a_signal_is_forwarded_once_and_given_time():
    workers = (worker(0), worker(1))
    first = {"signals": (signal.SIGTERM,), "signalled_s": NOW - 1.0}
    assert decide(situation(*workers, **first)) == Forward(signal.SIGTERM)
    assert decide(situation(*workers, **first, is_forwarded=True)) == Wait()
    late = {**first, "signalled_s": NOW - 11.0, "is_forwarded": True}
    assert decide(situation(*workers, **late)).kind == INTERRUPTED


def test_a_second_signal_ends_the_run_at_once():
    outcome = decide(situation(worker(0), signals=(signal.SIGINT,) * 2, signalled_s=NOW, is_forwarded=True))
    assert (outcome.kind, outcome.exit_code) == (INTERRUPTED, 130)


def test_a_second_sigterm_leaves_the_time_that_the_first_gave():
    twice = {"signals": (signal.SIGTERM,) * 2, "is_forwarded": True}
    assert decide(situation(worker(0), **twice, signalled_s=NOW - 1.0)) == Wait()
    assert decide(situation(worker(0), **twice, signalled_s=NOW - 11.0)).exit_code == 143
    impatient = {"signals": (signal.SIGTERM, signal.SIGINT), "is_forwarded": True, "signalled_s": NOW}
    assert decide(situation(worker(0), **impatient)).exit_code == 143


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupted_run_never_looks_done(signum, code):
    outcome = decide(situation(ended(0), ended(1), signals=(signum,), signalled_s=NOW, is_forwarded=True))
    assert (outcome.kind, outcome.exit_code) == (INTERRUPTED, code)


def test_what_failed_while_it_was_interrupted_is_told_but_not_the_interruption_itself():
    workers = (
        ended(0, 130, failure(0, 130, exception="KeyboardInterrupt")),
        ended(1, 1, failure(1, 1)),
        ended(2, 75, failure(2, 75)),
    )
    outcome = decide(situation(*workers, signals=(signal.SIGINT,), signalled_s=NOW, is_forwarded=True))
    assert isinstance(outcome, Outcome)
    assert [one.rank for one in outcome.failures] == [1]
    assert outcome.exit_code == 130
