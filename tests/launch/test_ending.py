"""How a run ends when it is not left to itself: signals, kills, stuck workers, and nothing left behind."""

import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import termios
import time

import pytest

from tests.launch import without_backend
from tests.launch.without_backend import DEADLINE_S, command, is_alive, wait_for, wait_for_file

# Each worker tells its own process, a child in its group, one in a session of its own, and one that has
# moved away without an environment. None of them ends by itself.
FAMILY = """
silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
child = subprocess.Popen(["sleep", "600"])
session = subprocess.Popen(["sleep", "600"], **silent)
move_away = 'sleep 600 & echo $! > "$0.part"; mv "$0.part" "$0"'
subprocess.run(["sh", "-c", move_away, str(folder / f"far-{rank}")], env={"PATH": os.environ["PATH"]}, **silent)
far = int((folder / f"far-{rank}").read_text())
tell(f"family-{rank}", f"{os.getpid()} {child.pid} {session.pid} {far}")
"""


def family(folder: pathlib.Path, num_workers: int = 2) -> list[int]:
    """The processes of all workers, once they are there."""
    told = [wait_for_file(folder / f"family-{rank}") for rank in range(num_workers)]
    return [int(pid) for text in told for pid in text.split()]


def finish(process: subprocess.Popen) -> tuple[int, str]:
    """The exit code and the standard error of a launcher that is about to end."""
    _, stderr = process.communicate(timeout=DEADLINE_S)
    return process.returncode, stderr


def test_a_failure_ends_the_others_and_all_they_have_started(script, start):
    path = script(FAMILY + "wait_for('fail')\nif rank == 1:\n    raise ValueError\ntime.sleep(600)\n")
    process = start(path, workers=2)
    pids = family(path.parent)
    assert all(map(is_alive, pids))
    (path.parent / "fail").touch()
    assert finish(process)[0] == 1
    assert not [pid for pid in pids if is_alive(pid)]


def test_success_leaves_nothing_behind_either(script, start):
    path = script(FAMILY)
    process = start(path, workers=2)
    pids = family(path.parent)
    assert finish(process)[0] == 0
    assert not [pid for pid in pids if is_alive(pid)]


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_all_workers_and_all_they_have_started(script, start, signum, code):
    path = script(FAMILY + "time.sleep(600)\n")
    process = start(path, workers=2)
    pids = family(path.parent)
    process.send_signal(signum)
    returncode, stderr = finish(process)
    assert returncode == code
    assert f"interrupted by {signum.name}" in stderr
    assert "Traceback" not in stderr
    assert not [pid for pid in pids if is_alive(pid)]


def test_ctrl_c_reaches_each_process_once(script, start):
    path = script(
        """
        child = subprocess.Popen([sys.executable, "-c",
            "import sys, time\\n"
            "sys.stdout.write('ready\\\\n'); sys.stdout.flush()\\n"
            "try:\\n    time.sleep(600)\\n"
            "except KeyboardInterrupt:\\n    open(sys.argv[1], 'w').close()\\n", str(folder / f"child-{rank}")],
            stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        count = 0
        def count_it(signum, frame):
            global count
            count += 1
        signal.signal(signal.SIGINT, count_it)
        tell(f"ready-{rank}")
        while count == 0:
            time.sleep(0.01)
        child.wait()
        time.sleep(0.5)
        tell(f"count-{rank}", count)
        """
    )
    process = start(path, workers=2)
    for rank in range(2):
        wait_for_file(path.parent / f"ready-{rank}")
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    for rank in range(2):
        assert (path.parent / f"count-{rank}").read_text() == "1"
        assert (path.parent / f"child-{rank}").exists()


def test_a_worker_may_save_on_sigterm_with_the_help_of_its_children(script, start):
    path = script(
        """
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        def save(signum, frame):
            output, _ = child.communicate(f"state {rank}")
            tell(f"saved-{rank}", output)
            sys.exit(143)
        signal.signal(signal.SIGTERM, save)
        tell(f"ready-{rank}")
        time.sleep(600)
        """
    )
    process = start(path, workers=2)
    for rank in range(2):
        wait_for_file(path.parent / f"ready-{rank}")
    process.send_signal(signal.SIGTERM)
    returncode, stderr = finish(process)
    assert returncode == 143
    assert "SystemExit" not in stderr
    assert [(path.parent / f"saved-{rank}").read_text() for rank in range(2)] == ["state 0", "state 1"]


STUBBORN = """
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, lambda *args: tell(f"heard-{rank}"))
tell(f"family-{rank}", os.getpid())
while True:
    time.sleep(1)
"""


def test_a_second_signal_kills_who_did_not_listen_to_the_first(script, start):
    path = script(STUBBORN)
    process = start(path, workers=2)
    pids = family(path.parent)
    process.send_signal(signal.SIGINT)
    for rank in range(2):
        wait_for_file(path.parent / f"heard-{rank}")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    assert not [pid for pid in pids if is_alive(pid)]


def test_who_does_not_listen_is_killed_after_the_grace_period(script, start):
    path = script(STUBBORN)
    process = start(path, workers=2, grace_s=0.5)
    pids = family(path.parent)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_launcher_started_with_ignored_signals_leaves_them_ignored(script):
    path = script("tell(f'family-{rank}', os.getpid())\nwait_for('go')\n")
    shell = ["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", *command(path, workers=2)]
    process = subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    family(path.parent)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    (path.parent / "go").touch()
    assert finish(process)[0] == 0


@pytest.mark.parametrize("when", ["at once", "while they run"])
def test_a_killed_launcher_leaves_nothing_behind(script, start, when):
    path = script(FAMILY.replace('{"PATH": os.environ["PATH"]}', "None") + "time.sleep(600)\n")
    process = start(path, workers=2)
    mark = f"TRIREME_LAUNCHER={process.pid}.".encode()
    wait_for(lambda: marked(mark), "a worker has started")
    if when == "while they run":
        assert len(set(family(path.parent)) & set(marked(mark))) == 8
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    wait_for(lambda: not marked(mark) and not guardians(process.pid), "all have ended")
    # Nobody comes after them.
    time.sleep(0.2)
    assert not marked(mark)


def marked(mark: bytes) -> list[int]:
    """Processes with an environment variable that begins like this."""
    return [pid for pid in pids_of_all() if any(one.startswith(mark) for one in read(pid, "environ"))]


def guardians(launcher: int) -> list[int]:
    """The launcher's own helpers."""
    return [
        pid for pid in pids_of_all() if any(one.startswith(b"%d." % launcher) for one in read(pid, "cmdline"))
    ]


def pids_of_all() -> list[int]:
    return [int(path.name) for path in pathlib.Path("/proc").iterdir() if path.name.isdecimal()]


def read(pid: int, name: str) -> list[bytes]:
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    except OSError:
        return []


MEETING = """
from trireme.cluster.board import Board
board = Board.attach(os.environ)

def meet_for_ever():
    board.post(rank, step=7, state="waiting")
    tell(f"family-{rank}", os.getpid())
    time.sleep(600)

def go_astray():
    board.post(rank, step=7, state="running")
    tell(f"family-{rank}", os.getpid())
    while True:
        pass
"""


def test_a_stopped_worker_ends_the_run_within_the_timeout_by_name(script, start):
    path = script(MEETING + "go_astray() if rank == 1 else meet_for_ever()\n")
    process = start(path, workers=3, timeout_s=8)
    pids = family(path.parent, 3)
    began = time.monotonic()
    os.kill(pids[1], signal.SIGSTOP)
    returncode, stderr = finish(process)
    assert time.monotonic() - began < 8
    assert returncode == 1
    assert f"stuck: worker 1 (pid {pids[1]}, step 7, stopped by a signal such as SIGSTOP)" in stderr
    for rank in (0, 2):
        assert re.search(rf"stacks of worker {rank}:\n(.*\n)*?.*line \d+ in meet_for_ever", stderr)
    assert "stacks of worker 1" not in stderr
    assert not [pid for pid in pids if is_alive(pid)]


def test_a_stopped_worker_is_missed_by_itself_when_nobody_says_that_he_waits(script, start):
    path = script("tell(f'family-{rank}', os.getpid())\ntime.sleep(600)\n")
    process = start(path, workers=2, timeout_s=2)
    pids = family(path.parent)
    os.kill(pids[0], signal.SIGSTOP)
    returncode, stderr = finish(process)
    assert returncode == 1
    assert f"stuck: worker 0 (pid {pids[0]}, before its first step, stopped by" in stderr


def test_an_endless_loop_on_one_worker_shows_where(script, start):
    path = script(MEETING + "go_astray() if rank == 0 else meet_for_ever()\n")
    process = start(path, workers=2, timeout_s=2)
    (pid, _) = family(path.parent)
    returncode, stderr = finish(process)
    assert returncode == 1
    assert f"stuck: worker 0 (pid {pid}, step 7)" in stderr
    assert re.search(r"stacks of worker 0:\n(.*\n)*?.*line \d+ in go_astray", stderr)


def test_a_worker_that_left_too_early_is_named(script, start):
    path = script(MEETING + "if rank == 0:\n    meet_for_ever()\n")
    returncode, stderr = finish(start(path, workers=2, timeout_s=2))
    assert returncode == 1
    assert "stuck: worker 1" in stderr
    assert "it has ended with exit code 0" in stderr


def test_a_lost_peer_that_was_stopped_is_named(script, start):
    path = script(
        MEETING
        + "from trireme.errors import PeerTimeout\n"
        + "if rank == 1:\n    go_astray()\nwait_for('go')\nraise PeerTimeout('worker 1 did not answer')\n"
    )
    process = start(path, workers=2)
    pid = int(wait_for_file(path.parent / "family-1"))
    os.kill(pid, signal.SIGSTOP)
    (path.parent / "go").touch()
    returncode, stderr = finish(process)
    assert returncode == 75
    assert f"it was waiting for worker 1 (pid {pid}, step 7, stopped by a signal such as SIGSTOP)" in stderr


def test_ctrl_z_suspends_the_workers_and_their_waiting(script, start):
    path = script(
        MEETING
        + """
board.post(rank, step=1, state="waiting" if rank == 0 else "running")
tell(f"family-{rank}", os.getpid())
wait_for("go")
"""
    )
    process = start(path, workers=2, timeout_s=2)
    pids = family(path.parent)
    process.send_signal(signal.SIGTSTP)
    everybody = [process.pid, *pids]
    wait_for(lambda: all(state(pid) == "T" for pid in everybody), "all are suspended")
    time.sleep(2.5)  # longer than anybody may wait
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: all(state(pid) != "T" for pid in everybody), "all go on")
    (path.parent / "go").touch()
    assert finish(process)[0] == 0


def state(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_terminal_stays_a_terminal_of_the_same_size_with_one_live_line(script, tmp_path):
    path = script(
        """
        if rank:
            sys.exit()
        print(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size().columns)
        for step in range(3):
            sys.stdout.write(f"\\r{step}/3")
            sys.stdout.flush()
        print()
        while os.get_terminal_size().columns == 77:
            time.sleep(0.02)
        print(os.get_terminal_size().columns)
        """
    )
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 77))
    process = subprocess.Popen(
        command(path, workers=2, log_dir=str(tmp_path / "logs")), stdin=theirs, stdout=theirs, stderr=theirs
    )
    seen = read_until(ours, b"2/3")
    termios.tcsetwinsize(ours, (24, 99))
    process.send_signal(signal.SIGWINCH)
    seen += read_until(ours, b"99")
    assert process.wait(DEADLINE_S) == 0
    os.close(theirs)
    os.close(ours)
    lines = seen.decode().split("\n")
    assert lines[1:3] == ["True True 77\r", "\r0/3\r1/3\r2/3\r"]
    log = (tmp_path / "logs" / "worker-0.log").read_bytes()
    assert b"True True 77\n\r0/3\r1/3\r2/3\n99\n" in log


def read_until(fd: int, end: bytes) -> bytes:
    """What comes out of a terminal until these bytes have come."""
    seen = b""
    give_up = time.monotonic() + DEADLINE_S
    while end not in seen:
        ready, _, _ = select.select([fd], [], [], max(0, give_up - time.monotonic()))
        assert ready, f"waited in vain for {end!r} after {seen!r}"
        seen += os.read(fd, 4096)
    return seen


def test_only_what_is_a_terminal_is_one_in_the_worker(script, tmp_path):
    path = script("print(sys.stdout.isatty(), sys.stderr.isatty())")
    ours, theirs = pty.openpty()
    result = subprocess.run(
        command(path, workers=1), stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=DEADLINE_S
    )
    os.close(theirs)
    os.close(ours)
    assert result.stdout == "False True\n"


def test_ctrl_c_in_a_terminal(script):
    """A shell's job: the terminal itself sends the signal, to the launcher's group only."""
    path = script("tell(f'family-{rank}', os.getpid())\ntime.sleep(600)\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command(path)[0], command(path, workers=2))
    pids = family(path.parent)
    os.write(terminal, b"\x03")
    read_until(terminal, b"interrupted by SIGINT")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert not [pid for pid in pids if is_alive(pid)]


def test_the_helpers_of_this_file_see_what_they_should():
    child = subprocess.Popen(["sleep", "600"], env={"TRIREME_LAUNCHER": f"{os.getpid()}.x"})
    assert marked(f"TRIREME_LAUNCHER={os.getpid()}.".encode()) == [child.pid]
    assert without_backend.is_alive(child.pid)
    child.kill()
    child.wait()
    assert not without_backend.is_alive(child.pid)
