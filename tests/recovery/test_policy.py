"""The restart policy as a table: what happened before, what happens, what follows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.errors import UsageError
from trireme.recovery import FailedAttempt, Restart, RestartPolicy, Stop, decide

POLICY = RestartPolicy(max_restarts=3, first_delay_s=1.0, longest_delay_s=5.0)


def killed(step, rank=1):
    return FailedAttempt(rank, -9, step)


def raised(step, exception="ValueError", exit_code=1, rank=1):
    return FailedAttempt(rank, exit_code, step, exception)


def preempted(step):
    return FailedAttempt(1, 143, step)


def lost_peer(step):
    return FailedAttempt(0, 75, step, "PeerLost")


DISAPPEARED = FailedAttempt(1, None, 5)
STUCK = FailedAttempt(1, None, 5, is_stuck=True)

# history, failure, (after_s, is_counted, restarts_left) or the exit code of the run
TABLE = {
    "killed": ([], killed(5), (0.0, True, 2)),
    "disappeared": ([], DISAPPEARED, (0.0, True, 2)),
    "stuck": ([], STUCK, (0.0, True, 2)),
    "the script's own exit code, no exception": ([], FailedAttempt(0, 3, 5), (0.0, True, 2)),
    "segmentation fault at the same step": (
        [FailedAttempt(1, -11, 5)],
        FailedAttempt(1, -11, 5),
        (1.0, True, 1),
    ),
    "killed, in the words of a shell": ([], FailedAttempt(1, 137, 5), (0.0, True, 2)),
    # Back-off: only failures in a row that get no further wait, and progress forgives them.
    "killed at the same step": ([killed(5)], killed(5), (1.0, True, 1)),
    "killed earlier than before": ([killed(5)], killed(2), (1.0, True, 1)),
    "killed twice at the same step": ([killed(5), killed(5)], killed(5), (2.0, True, 0)),
    "killed further on": ([killed(5)], killed(6), (0.0, True, 1)),
    "killed further on after a fruitless one": ([killed(5), killed(5)], killed(6), (0.0, True, 0)),
    "before the first step": ([], killed(None), (1.0, True, 2)),
    "in the first step": ([], killed(0), (0.0, True, 2)),
    # Budget.
    "the fourth": ([killed(1), killed(2), killed(3)], killed(4), 65),
    "the fourth, disappeared": ([killed(1), killed(2), killed(3)], DISAPPEARED, 65),
    # An exception: once it may be the weather, twice at the same step it is the script.
    "exception": ([], raised(5), (0.0, True, 2)),
    "the same exception at the same step": ([raised(5)], raised(5), 1),
    "the same exception with the script's exit code": ([raised(5)], raised(5, exit_code=7), 7),
    "the same exception at another step": ([raised(5)], raised(9), (0.0, True, 1)),
    "another exception at the same step": ([raised(5)], raised(5, "KeyError"), (1.0, True, 1)),
    # Which rank's traceback came first is chance when all run the same script.
    "the same exception on another rank": ([raised(5, rank=0)], raised(5, rank=1), 1),
    # A kill in between does not make the script right.
    "the same exception, but not in a row": ([raised(5), killed(5)], raised(5), 1),
    "the same exception before the first step": ([raised(None)], raised(None), 1),
    "killed where it raised": ([raised(5)], killed(5), (1.0, True, 1)),
    # Never retried, even the first time.
    "usage": ([], FailedAttempt(0, 64, None, "UsageError"), 64),
    "configuration": ([], FailedAttempt(0, 78, None, "ConfigurationError"), 78),
    "somebody else's budget": ([], FailedAttempt(0, 65, 5), 65),
    "Ctrl-C": ([], FailedAttempt(0, 130, 5, "KeyboardInterrupt"), 130),
    "Ctrl-C that no handler saw": ([], FailedAttempt(0, -2, 5), 130),
    # Preemption is nobody's fault and never counts, saved (143) or not (-15).
    "preempted": ([], preempted(5), (0.0, False, 3)),
    "preempted before it had a handler": ([], FailedAttempt(1, -15, None), (1.0, False, 3)),
    "preempted with the budget used up": ([killed(1), killed(2), killed(3)], preempted(4), (0.0, False, 0)),
    "killed after preemptions": ([preempted(1), preempted(2), preempted(3)], killed(4), (0.0, True, 2)),
    "preempted again and again before a step": ([preempted(None)] * 9, preempted(None), (5.0, False, 3)),
    # A lost peer is collateral, and its exception is not the script's ...
    "peer lost": ([], lost_peer(5), (0.0, False, 3)),
    "peer lost with the budget used up": ([killed(1), killed(2), killed(3)], lost_peer(4), (0.0, False, 0)),
    # ... but a run that does nothing except lose peers must end some day.
    "peer lost at the same step": ([lost_peer(5)], lost_peer(5), (1.0, True, 2)),
    "peer lost at the same step for ever": ([lost_peer(5)] * 4, lost_peer(5), 65),
}


@pytest.mark.parametrize("history, failure, expected", TABLE.values(), ids=TABLE)
def test_the_decision(history, failure, expected):
    decision = decide(failure, history, POLICY)
    if isinstance(expected, int):
        assert isinstance(decision, Stop)
        assert decision.exit_code == expected
    else:
        assert isinstance(decision, Restart)
        assert (decision.after_s, decision.is_counted, decision.restarts_left) == expected


@pytest.mark.parametrize(
    "failure, exit_code",
    [
        (killed(5), 137),  # what a shell reports
        (raised(5, exit_code=3), 3),
        (preempted(5), 143),
        (FailedAttempt(1, -15, 5), 143),
        (lost_peer(5), 75),
        (DISAPPEARED, 75),  # for the launcher, a peer was lost
        (STUCK, 1),
    ],
)
def test_without_restarts_the_run_ends_as_its_worker_did(failure, exit_code):
    decision = decide(failure, [], RestartPolicy(max_restarts=0))
    assert isinstance(decision, Stop)
    assert decision.exit_code == exit_code


@pytest.mark.parametrize(
    "failure, text",
    [
        (killed(5), "rank 1 was killed by SIGKILL at step 5"),
        (FailedAttempt(1, 137, 5), "rank 1 was killed by SIGKILL at step 5"),
        (raised(None), "rank 1 raised ValueError (exit code 1) before its first step"),
        (FailedAttempt(1, 3, 5), "rank 1 ended with exit code 3 at step 5"),
        (FailedAttempt(1, 200, 5), "rank 1 ended with exit code 200 at step 5"),
        (DISAPPEARED, "rank 1 disappeared at step 5"),
        (STUCK, "rank 1 was stuck at step 5"),
        (preempted(0), "rank 1 was preempted (SIGTERM) at step 0"),
        (lost_peer(5), "rank 0 lost a peer (exit code 75) at step 5"),
    ],
)
def test_the_reason_says_who_what_and_where(failure, text):
    assert str(failure) == text
    assert decide(failure, [], RestartPolicy(max_restarts=9)).reason == text
    assert decide(failure, [], RestartPolicy(max_restarts=0)).reason.startswith(text)


def test_both_ways_to_write_a_signal_are_the_same():
    assert FailedAttempt(1, -9, 5) == FailedAttempt(1, 137, 5)


def test_success_is_no_failure():
    with pytest.raises(UsageError, match="Rank 2 ended with exit code 0"):
        FailedAttempt(2, 0)


def test_a_wrong_policy_names_all_that_is_wrong():
    with pytest.raises(UsageError) as caught:
        RestartPolicy(max_restarts=-1, first_delay_s=-2, longest_delay_s=-3)
    assert all(
        word in str(caught.value) for word in ("max_restarts=-1", "first_delay_s=-2", "longest_delay_s=-3")
    )


failures = st.builds(
    FailedAttempt,
    rank=st.integers(0, 3),
    exit_code=st.sampled_from([None, -15, -11, -9, 1, 2, 75, 137, 143]),
    step=st.none() | st.integers(0, 5),
    exception=st.sampled_from(["", "ValueError", "KeyError"]),
)


@given(st.lists(failures, max_size=60), failures)
def test_delays_are_bounded_and_restarts_within_the_budget(history, failure):
    decision = decide(failure, history, POLICY)
    if isinstance(decision, Restart):
        assert 0 <= decision.after_s <= POLICY.longest_delay_s
        assert not decision.is_counted or 0 <= decision.restarts_left < POLICY.max_restarts


@given(st.lists(st.sampled_from([-9, 1, 75, None]), min_size=30, max_size=40))
def test_a_run_that_never_gets_anywhere_ends(exit_codes):
    history = []
    for exit_code in exit_codes:
        failure = FailedAttempt(0, exit_code, 3)
        if isinstance(decide(failure, history, POLICY), Stop):
            return
        history.append(failure)
    pytest.fail(f"{len(history)} restarts without progress")


def test_the_back_off_doubles_and_does_not_overflow():
    policy = RestartPolicy(max_restarts=5000, first_delay_s=0.5, longest_delay_s=30.0)
    history = [killed(5)]
    delays = []
    for _ in range(2000):
        if len(delays) < 8 or len(history) == 1999:
            delays.append(decide(killed(5), history, policy).after_s)
        history.append(killed(5))
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
