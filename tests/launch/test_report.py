"""The words at the end of a run."""

import signal

from trireme.cluster.board import WAITING
from trireme.launch import report
from trireme.launch.decision import DONE, FAILED, INTERRUPTED, STUCK, TIME_LIMIT, Outcome, WorkerView
from trireme.launch.failure_file import Failure

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: bad row\n'
BAD_ROW = Failure(1, 1.0, "ValueError", "bad row\nand more", TRACEBACK, 1, step=12, pid=77)


def told(outcome: Outcome, stacks=None, logs=None) -> list[str]:
    text = report.ended(outcome, 3, 60.0, stacks or {}, logs or {}, time_limit_s=5.0)
    assert text == "" or text.endswith("\n")
    return text.splitlines()


def test_a_run_that_went_well_needs_no_words():
    assert told(Outcome(DONE, 0)) == []


def test_the_first_failure_is_the_headline_and_its_traceback_is_told_once():
    follower = Failure(2, 2.0, "trireme.errors.PeerLost", "worker 1 is gone", "Traceback of no interest", 75)
    workers = (WorkerView(0, 10), WorkerView(1, 77, exit_code=1), WorkerView(2, 12, exit_code=75))
    assert told(Outcome(FAILED, 1, workers, (BAD_ROW, follower))) == [
        "trireme: worker 1 of 3 (pid 77, step 12) failed with ValueError: bad row",
        *TRACEBACK.splitlines(),
        "trireme: then worker 2 failed with trireme.errors.PeerLost: worker 1 is gone",
        "trireme: worker 0 ended with it",
    ]


def test_who_left_no_traceback_is_told_by_its_last_words():
    silent = Failure(1, 1.0, "", "was killed by SIGSEGV", "", 139, pid=77)
    lines = told(Outcome(FAILED, 139, (), (silent,)), logs={1: "one\n" * 50 + "Fatal Python error\n"})
    assert lines[0] == "trireme: worker 1 of 3 (pid 77) was killed by SIGSEGV"
    assert lines[-1] == "    Fatal Python error"
    assert len(lines) == 21


def test_a_kill_that_nobody_explains_hints_at_memory():
    killed = Failure(0, 1.0, "", "was killed by SIGKILL", "", 137)
    assert "memory" in told(Outcome(FAILED, 137, (), (killed,)))[-1]


def test_an_exit_on_purpose():
    left = Failure(0, 1.0, "SystemExit", "7", "", 7, pid=5)
    assert told(Outcome(FAILED, 7, (), (left,))) == ["trireme: worker 0 of 3 (pid 5) exited with code 7"]


def test_a_stuck_worker_is_named_with_all_that_is_known_of_it():
    workers = (
        WorkerView(0, 10, step=8, state=WAITING),
        WorkerView(1, 11, step=8, stopped_s=1.0),
        WorkerView(2, 12, state=WAITING),
    )
    lines = told(Outcome(STUCK, 1, workers, culprits=(1,)), stacks={0: "Thread 0x1\n  File x\n"})
    assert lines[0] == "trireme: stuck: worker 1 (pid 11, step 8, stopped by a signal such as SIGSTOP)"
    assert "worker 0 (pid 10, step 8), worker 2 (pid 12, before its first step) waited" in lines[1]
    assert "60 s (--timeout)" in lines[1]
    assert lines[2:] == ["trireme: stacks of worker 0:", "Thread 0x1", "  File x"]


def test_one_that_left_while_the_others_wait():
    workers = (WorkerView(0, 10, state=WAITING), WorkerView(1, 11, step=3, exit_code=0))
    assert (
        "worker 1 (pid 11, step 3, it has ended with exit code 0)"
        in told(Outcome(STUCK, 1, workers, culprits=(1,)))[0]
    )


def test_all_wait_for_each_other():
    workers = (WorkerView(0, 10, step=3, state=WAITING), WorkerView(1, 11, step=3, state=WAITING))
    lines = told(Outcome(STUCK, 1, workers, culprits=(0, 1)))
    assert "all workers wait for each other" in lines[0]


def test_a_lost_peer_is_told_together_with_who_was_waited_for():
    lost = Failure(0, 1.0, "trireme.errors.PeerTimeout", "no answer", TRACEBACK, 75)
    workers = (WorkerView(0, 10, exit_code=75), WorkerView(1, 11, stopped_s=1.0))
    lines = told(Outcome(FAILED, 75, workers, (lost,), culprits=(1,)))
    assert "trireme: it was waiting for worker 1 (pid 11, before its first step, stopped by" in lines[-1]


def test_a_time_limit():
    workers = (WorkerView(0, 10, step=3), WorkerView(1, 11, exit_code=0))
    lines = told(Outcome(TIME_LIMIT, 1, workers, culprits=(0,)))
    assert lines == ["trireme: still running after 5 s: worker 0 (pid 10, step 3)"]


def test_an_interruption():
    workers = (WorkerView(0, 10, step=30), WorkerView(1, 11, step=31))
    outcome = Outcome(INTERRUPTED, 130, workers, signum=signal.SIGINT)
    assert told(outcome) == ["trireme: interrupted by SIGINT at step 30"]
    failed = Outcome(INTERRUPTED, 130, workers, (BAD_ROW,), signum=signal.SIGINT)
    assert told(failed)[1].endswith("ValueError: bad row")
