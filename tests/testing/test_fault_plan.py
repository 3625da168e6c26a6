"""A plan is read as it was meant or refused with all that is wrong; each fault does what its name says, once."""

import contextlib
import os
import signal
import subprocess
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.errors import BackupDamaged, BackupWarning, InjectedFault, UsageError
from trireme.recovery import Backups, Snapshot
from trireme.testing.fault_plan import VARIABLE, Fault, FaultPlan, perform

DEADLINE_S = 30.0

PLAN = """
    kill(rank=1, step=12); hang(rank=0, step=30); stop(rank=1, step=3);
    raise_error(rank=0, step=2, epoch=1); terminate(rank=0, step=9, generation=2);
    corrupt_backup(newest); corrupt_backup(all, generation=0)
"""


def test_a_plan_is_read():
    assert FaultPlan.parse(PLAN).faults == (
        Fault("kill", rank=1, step=12),
        Fault("hang", rank=0, step=30),
        Fault("stop", rank=1, step=3),
        Fault("raise_error", rank=0, step=2, epoch=1),
        Fault("terminate", rank=0, step=9, generation=2),
        Fault("corrupt_backup", which="newest", generation=1),
        Fault("corrupt_backup", which="all", generation=0),
    )


@pytest.mark.parametrize("text", ["", " ", ";;", "\n"])
def test_an_empty_plan_is_no_faults(text):
    assert FaultPlan.parse(text) == FaultPlan()


def test_the_plan_comes_from_the_environment():
    assert FaultPlan.from_environ({}) == FaultPlan()
    assert FaultPlan.from_environ({VARIABLE: "kill(rank=1, step=2)"}).faults == (Fault("kill", 1, 2),)


at_a_step = st.builds(
    Fault,
    st.sampled_from(["kill", "hang", "stop", "terminate", "raise_error"]),
    rank=st.integers(0, 99),
    step=st.integers(0, 10**9),
    epoch=st.none() | st.integers(0, 99),
    generation=st.integers(0, 9),
)
of_backups = st.builds(
    Fault,
    st.just("corrupt_backup"),
    which=st.sampled_from(["newest", "oldest", "all"]),
    generation=st.integers(0, 9),
)


@given(st.lists(at_a_step | of_backups, max_size=4))
def test_a_plan_is_written_as_it_is_read(faults):
    plan = FaultPlan(tuple(faults))
    assert FaultPlan.parse(str(plan)) == plan


# A sentence and what is said of it.
MISTAKES = {
    "kil(rank=1, step=2)": "no fault is called 'kil'; did you mean kill?",
    "explode(rank=1, step=2)": "no fault is called 'explode'",
    "kill(rank=1)": "step is missing",
    "kill()": "rank is missing; step is missing",
    "kill(rank=1, stpe=2)": "'stpe' means nothing to kill; did you mean step? (kill takes rank, step, epoch, "
    "generation); step is missing",
    "kill(1, step=2)": "rank is missing; 1 needs a name, such as rank=1",
    "kill(rank=-1, step=2)": "rank=-1 must be a whole number, 0 or more",
    "kill(rank=1.5, step=2)": "rank=1.5 must be a whole number, 0 or more",
    "kill(rank=True, step=2)": "rank=True must be a whole number, 0 or more",
    "kill(rank=one, step='2')": "rank=one must be a whole number, 0 or more; "
    "step='2' must be a whole number, 0 or more",
    "kill(rank=1, rank=1, step=2)": "rank is given twice",
    "kill(**faults)": "'**' means nothing to kill",
    "kill rank=1 step=2": "not of the form kind(name=number, ...)",
    "kill(rank=1, step=2": "not of the form kind(name=number, ...)",
    "kill(rank=1, step=2), hang(rank=0, step=3)": "not of the form kind(name=number, ...)",
    "kill": "not of the form kind(name=number, ...)",
    "os.kill(rank=1, step=2)": "not of the form kind(name=number, ...)",
    "\0": "not of the form kind(name=number, ...)",
    "corrupt_backup()": "one of newest, oldest, all was expected, not nothing",
    "corrupt_backup(new)": "one of newest, oldest, all was expected, not new",
    "corrupt_backup(newest, oldest)": "one of newest, oldest, all was expected, not newest, oldest",
    "corrupt_backup(newest, step=3)": "'step' means nothing to corrupt_backup (corrupt_backup takes generation)",
}


@pytest.mark.parametrize("text, said", MISTAKES.items())
def test_what_is_wrong_is_said(text, said):
    with pytest.raises(UsageError) as caught:
        FaultPlan.parse(text)
    for part in said.split("; "):
        assert part in str(caught.value)


def test_all_mistakes_are_said_at_once_with_the_valid_faults():
    with pytest.raises(UsageError) as caught:
        FaultPlan.parse("; ".join(text for text in MISTAKES if ";" not in text))
    message = str(caught.value)
    assert all(part in message for said in MISTAKES.values() for part in said.split("; "))
    assert message.endswith(
        "Valid faults: kill(rank, step[, epoch, generation]), hang(rank, step[, epoch, generation]), "
        "stop(rank, step[, epoch, generation]), terminate(rank, step[, epoch, generation]), "
        "raise_error(rank, step[, epoch, generation]), "
        "corrupt_backup(newest | oldest | all[, generation])."
    )


def test_one_wrong_sentence_refuses_the_whole_plan():
    with pytest.raises(UsageError) as caught:
        FaultPlan.parse("kill(rank=0, step=1); kill(rank=0)")
    assert str(caught.value).count("kill(rank=0") == 1


@given(st.text(alphabet="kilstop(rank=1,e2);*-'\" \n\\", max_size=40))
def test_no_text_is_answered_with_another_error(text):
    with contextlib.suppress(UsageError):
        FaultPlan.parse(text)


def kinds(faults):
    return [fault.kind for fault in faults]


def test_a_fault_is_due_at_its_rank_and_step():
    plan = FaultPlan.parse("kill(rank=1, step=12); hang(rank=0, step=30); stop(rank=1, step=12)")
    assert kinds(plan.due(rank=1, step=12)) == ["kill", "stop"]
    assert kinds(plan.due(rank=0, step=30)) == ["hang"]
    assert plan.due(rank=0, step=12) == plan.due(rank=1, step=11) == plan.due(rank=1, step=13) == []


def test_a_restarted_run_gets_past_the_fault_and_meets_its_own():
    plan = FaultPlan.parse("kill(rank=1, step=12); kill(rank=0, step=12, generation=1)")
    assert kinds(plan.due(1, 12)) == ["kill"]
    assert plan.due(0, 12) == plan.due(1, 12, generation=1) == []
    assert kinds(plan.due(0, 12, generation=1)) == ["kill"]
    assert plan.due(0, 12, generation=2) == plan.due(1, 12, generation=2) == []


def test_a_fault_with_an_epoch_counts_steps_in_it():
    plan = FaultPlan.parse("raise_error(rank=0, step=2, epoch=1)")
    assert plan.due(0, 2) == []
    assert plan.due(0, 2, epoch=0, step_in_epoch=2) == []
    assert kinds(plan.due(0, 12, epoch=1, step_in_epoch=2)) == ["raise_error"]
    assert plan.due(0, 2, epoch=1, step_in_epoch=3) == []


def test_a_fault_without_an_epoch_counts_steps_of_the_run():
    plan = FaultPlan.parse("kill(rank=0, step=12)")
    assert kinds(plan.due(0, 12, epoch=1, step_in_epoch=2)) == ["kill"]
    assert plan.due(0, 22, epoch=2, step_in_epoch=12) == []


@pytest.mark.parametrize("half", [{"epoch": 1}, {"step_in_epoch": 1}])
def test_an_epoch_without_a_step_in_it_is_refused(half):
    with pytest.raises(UsageError, match="belong together"):
        FaultPlan().due(0, 1, **half)


def test_backups_are_corrupted_before_the_first_restart_reads_them():
    plan = FaultPlan.parse(
        "kill(rank=0, step=1); corrupt_backup(newest); corrupt_backup(oldest, generation=0)"
    )
    assert [fault.which for fault in plan.due_before_reading_backups(0)] == ["oldest"]
    assert [fault.which for fault in plan.due_before_reading_backups(1)] == ["newest"]
    assert plan.due_before_reading_backups(2) == []


def test_ranks_that_are_not_there_are_refused():
    plan = FaultPlan.parse("kill(rank=1, step=2); kill(rank=2, step=2); corrupt_backup(newest)")
    plan.check_ranks(3)
    with pytest.raises(
        UsageError, match=r"2 workers do not have: kill\(rank=2, step=2, generation=0\). Ranks go"
    ):
        plan.check_ranks(2)


def start(sentence):
    program = (
        "import sys; from trireme.testing.fault_plan import FaultPlan, perform\n"
        "print('before', flush=True)\n"
        "for fault in FaultPlan.parse(sys.argv[1]).due(0, 1): perform(fault)\n"
        "print('after', flush=True)"
    )
    command = [sys.executable, "-c", program, sentence]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("kind, number", [("kill", signal.SIGKILL), ("terminate", signal.SIGTERM)])
def test_kill_and_terminate_send_their_signal(kind, number):
    with start(f"{kind}(rank=0, step=1)") as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, output, errors) == (-number, "before\n", "")


def test_stop_stops_until_it_is_continued():
    with start("stop(rank=0, step=1)") as process:
        _, status = _wait_until_stopped(process.pid)
        assert status == signal.SIGSTOP
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, output) == (0, "before\nafter\n")


def _wait_until_stopped(pid):
    found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return found.si_pid, found.si_status


def test_hang_stays_alive_and_says_nothing():
    with start("hang(rank=0, step=1)") as process:
        assert process.stdout.readline() == "before\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        process.terminate()
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, output) == (-signal.SIGTERM, "")


def test_raise_error_names_its_sentence():
    with pytest.raises(InjectedFault, match=r"raise_error\(rank=0, step=2, epoch=1, generation=0\)"):
        perform(FaultPlan.parse("raise_error(rank=0, step=2, epoch=1)").faults[0])


@pytest.fixture(params=["folder", "memory://"])
def backups(request, tmp_path):
    backups = Backups(tmp_path if request.param == "folder" else f"memory://{uuid.uuid4().hex}")
    for step in range(3):
        backups.save(Snapshot(0, step, blobs={"a": b"content"}))
    return backups


@pytest.mark.parametrize("which, damaged", [("newest", [2]), ("oldest", [0]), ("all", [0, 1, 2])])
def test_corrupt_backup_corrupts_those_it_names(backups, which, damaged):
    perform(FaultPlan.parse(f"corrupt_backup({which})").faults[0], backups)
    found = []
    for step, name in enumerate(backups.names()):
        try:
            assert backups.load(name).step == step
        except BackupDamaged:
            found.append(step)
    assert found == damaged


def test_after_corrupt_backup_a_run_goes_on_from_the_one_before(backups):
    perform(FaultPlan.parse("corrupt_backup(newest)").faults[0], backups)
    with pytest.warns(BackupWarning):
        assert backups.load_newest().step == 1


def test_a_fault_that_finds_no_backup_is_an_error_and_no_passed_test(tmp_path):
    fault = FaultPlan.parse("corrupt_backup(newest)").faults[0]
    with pytest.raises(UsageError, match=r"there is none in .*The test would prove nothing"):
        perform(fault, Backups(tmp_path))
    with pytest.raises(UsageError, match="no place of backups was given"):
        perform(fault)
