"""What follows the end of an attempt."""

import os
import signal
import time

import pytest

from tests.launch.without_backend import run
from trireme.errors import EXIT_PEER_LOST, EXIT_RESTART_BUDGET_USED_UP
from trireme.launch.decision import DONE, FAILED, INTERRUPTED, STUCK, TIME_LIMIT, Outcome, WorkerView
from trireme.launch.failure_file import Failure
from trireme.launch.restarts import Restarts, failed_attempt, pause
from trireme.launch.signals import Signals
from trireme.recovery.policy import FailedAttempt, Restart, RestartPolicy, Stop


def failure(rank=0, exception="", exit_code=137, step=5):
    return Failure(rank, 0.0, exception, "", "", exit_code, step)


def failed(**details):
    return Outcome(FAILED, 1, failures=(failure(**details),))


WORKERS = (WorkerView(0, step=7), WorkerView(1, step=6))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome(DONE, 0), None),
        (Outcome(INTERRUPTED, 143, signum=15), None),
        (Outcome(TIME_LIMIT, 1, WORKERS, culprits=(0,)), None),
        (failed(rank=1), FailedAttempt(1, 137, 5)),
        (failed(exception="ValueError", exit_code=1), FailedAttempt(0, 1, 5, "ValueError")),
        (failed(exit_code=EXIT_PEER_LOST, step=None), FailedAttempt(0, EXIT_PEER_LOST)),
        # The first of several failures is the one that explains the others.
        (Outcome(FAILED, 1, failures=(failure(rank=1), failure(rank=0))), FailedAttempt(1, 137, 5)),
        (Outcome(STUCK, 1, WORKERS, culprits=(1,)), FailedAttempt(1, None, 6, is_stuck=True)),
    ],
)
def test_the_failure_behind_an_end(outcome, expected):
    assert failed_attempt(outcome) == expected


def test_without_restarts_nothing_follows():
    assert Restarts(RestartPolicy()).after(failed()) is None


def test_restarts_are_counted_and_end():
    restarts = Restarts(RestartPolicy(max_restarts=2))
    first, second, third = (restarts.after(failed(step=step)) for step in (5, 9, 12))
    assert isinstance(first, Restart) and (first.after_s, first.restarts_left) == (0, 1)
    assert isinstance(second, Restart) and second.restarts_left == 0
    assert isinstance(third, Stop) and third.exit_code == EXIT_RESTART_BUDGET_USED_UP


def test_the_same_exception_at_the_same_step_ends_the_run():
    restarts = Restarts(RestartPolicy(max_restarts=9))
    raised = failed(exception="ValueError", exit_code=3)
    assert isinstance(restarts.after(raised), Restart)
    decision = restarts.after(raised)
    assert isinstance(decision, Stop) and decision.exit_code == 3


WORKER = """
from trireme.cluster.board import Board
board = Board.attach(os.environ)
generation = int(os.environ["TRIREME_GENERATION"])
tell(f"started-{generation}-{rank}")
board.post(rank, step=generation // 2 if "again" in sys.argv else generation)
if rank == 1 and "killed" in sys.argv and generation < 2:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1 and "raise" in sys.argv:
    raise ValueError("no restart mends this")
if rank == 0 and "raise" in sys.argv:
    time.sleep(600)
"""


def test_a_killed_run_starts_again_until_it_ends_well(script):
    path = script(WORKER)
    done = run(path, "killed", workers=2, max_restarts=3)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("starting again now, from what the script itself has saved") == 2
    assert "restarts left: 1" in done.stderr
    assert "first step" in done.stderr
    assert {path.name for path in path.parent.glob("started-*")} == {
        f"started-{generation}-{rank}" for generation in range(3) for rank in range(2)
    }


def test_restarts_are_used_up(script):
    done = run(script(WORKER), "killed", workers=2, max_restarts=1)
    assert done.returncode == EXIT_RESTART_BUDGET_USED_UP
    assert "all 1 restarts are used up" in done.stderr


def test_an_exception_that_comes_again_at_the_same_step_is_not_tried_a_third_time(script):
    path = script(WORKER)
    done = run(path, "raise", "again", workers=2, max_restarts=9)
    assert done.returncode == 1
    assert (
        "raised ValueError (exit code 1) at step 0, as it did before: a restart does not help" in done.stderr
    )
    assert not (path.parent / "started-2-0").exists()


def test_a_pause_is_over_when_the_run_is_ended():
    signals = Signals()
    assert pause(0, signals)
    with signals.taken_over():
        os.kill(os.getpid(), signal.SIGTERM)
        began_s = time.monotonic()
        assert not pause(60, signals)
    assert time.monotonic() - began_s < 30
