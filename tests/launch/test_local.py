"""Real workers under a real launcher: their output, their ends, and what is told about them."""

import os
import re
import subprocess
import sys

import pytest

from tests.launch.without_backend import DEADLINE_S, command, run


def test_worker_0_keeps_the_terminal_and_every_worker_has_a_log(script, tmp_path):
    path = script("print('out', rank, sys.argv[1:]); print('err', rank, file=sys.stderr)")
    result = run(path, "--x", "a b", workers=3, log_dir=str(tmp_path / "my logs"))
    assert result.returncode == 0
    assert result.stdout == "out 0 ['--x', 'a b']\n"
    assert result.stderr == f"trireme: 3 workers, output in {tmp_path}/my logs\nerr 0\n"
    for rank in range(3):
        first, *rest = (tmp_path / "my logs" / f"worker-{rank}.log").read_text().splitlines()
        assert first.startswith(f"trireme: Cluster(worker {rank} of 3")
        assert sorted(rest) == [f"err {rank}", f"out {rank} ['--x', 'a b']"]


def test_a_lone_worker_is_quiet_and_has_a_log(script, tmp_path):
    result = run(script("print('hello')"), workers=1, log_dir=str(tmp_path / "logs"))
    assert (result.stdout, result.stderr) == ("hello\n", "")
    assert "hello" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_a_log_folder_of_an_earlier_run_is_used_again(script, tmp_path):
    path = script("print(sys.argv[1]); sys.exit(int(sys.argv[2]))")
    assert run(path, "first", "3", workers=2, log_dir=str(tmp_path / "logs")).returncode == 3
    assert run(path, "second", "0", workers=2, log_dir=str(tmp_path / "logs")).returncode == 0
    assert "first" not in (tmp_path / "logs" / "worker-1.log").read_text()


def test_the_default_log_folder_is_told(script):
    result = run(script("print('of worker', rank)"), workers=2)
    folder = re.search(r"output in (\S+)", result.stderr)[1]
    with open(os.path.join(folder, "worker-1.log")) as log:
        assert "of worker 1" in log.read()


@pytest.mark.parametrize(
    ("code", "max_restarts", "exit_code"),
    [("raise ValueError", 0, 65), ("raise ValueError", 1, 65), ("sys.exit(78)", 1, 78), ("pass", 1, 0)],
)
def test_what_is_given_up_here_is_started_again_by_nobody(script, code, max_restarts, exit_code):
    options = {"workers": 1, "max_restarts": max_restarts, "is_last_word": True}
    assert run(script(code), **options).returncode == exit_code


@pytest.mark.parametrize("failing", [0, 1])
def test_the_first_failure_is_the_headline_with_its_traceback_once(script, failing, tmp_path):
    path = script(f"if rank == {failing}:\n    raise ValueError('bad row')\ntime.sleep(600)\n")
    result = run(path, workers=3, log_dir=str(tmp_path / "logs"))
    lines = result.stderr.splitlines()
    assert re.fullmatch(
        rf"trireme: worker {failing} of 3 \(pid \d+\) failed with ValueError: bad row", lines[1]
    )
    assert lines[2] == "Traceback (most recent call last):"
    assert lines[3].startswith(f'  File "{path}", line ')
    assert lines[5] == "ValueError: bad row"
    assert (
        lines[-2] == f"trireme: workers {', '.join(str(r) for r in range(3) if r != failing)} ended with it"
    )
    assert lines[-1] == f"trireme: output of all workers: {tmp_path}/logs"
    assert result.stderr.count("Traceback") == 1
    assert "Traceback" in (tmp_path / "logs" / f"worker-{failing}.log").read_text()
    assert result.returncode == 1


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        ("sys.exit(7)", 7, "exited with code 7"),
        ("sys.exit('because')", 1, "exited with code 1"),
        ("os._exit(9)", 9, "exited with code 9 and left no traceback"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was killed by SIGSEGV"),
        ("import trireme.errors; raise trireme.errors.UsageError('x')", 64, "UsageError: x"),
        ("import trireme.errors; raise trireme.errors.ConfigurationError('x')", 78, "ConfigurationError: x"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("def f(): f()\nf()", 1, "RecursionError: maximum recursion"),
    ],
)
def test_the_exit_code_is_that_of_the_first_failure(script, ending, code, words):
    result = run(script(ending), workers=1)
    assert result.returncode == code
    assert words in result.stderr


def test_a_crash_shows_the_python_stack(script):
    result = run(script("def crash():\n    os.kill(os.getpid(), signal.SIGSEGV)\ncrash()"), workers=2)
    assert result.returncode == 139
    assert "in crash" in result.stderr


def test_a_failure_wins_over_the_lost_peers_it_leaves_behind(script):
    path = script(
        """
        from trireme.errors import PeerLost
        if rank == 0:
            tell("lost")
            raise PeerLost("worker 1 is gone")
        wait_for("lost")
        time.sleep(0.2)
        raise KeyError("the cause")
        """
    )
    result = run(path, workers=2)
    assert result.returncode == 1
    assert "worker 1 of 2" in result.stderr.splitlines()[1]
    assert "KeyError: 'the cause'" in result.stderr
    assert "then worker 0 failed with trireme.errors.PeerLost: worker 1 is gone" in result.stderr
    assert result.stderr.count("Traceback") == 1


def test_a_lost_peer_alone_is_exit_code_75(script):
    path = script("from trireme.errors import PeerLost\nif rank == 0:\n    raise PeerLost('gone')\n")
    assert run(path, workers=2).returncode == 75


def test_an_open_progress_line_is_ended_before_the_report(script):
    result = run(script("sys.stderr.write('12/100 loss 0.5'); sys.stderr.flush()\nsys.exit(3)"), workers=1)
    assert result.stderr.startswith("12/100 loss 0.5\ntrireme: worker 0 of 1")


def test_ten_megabytes_of_output_block_nobody(script, tmp_path):
    path = script(
        """
        line = "x" * 99
        for _ in range(100_000):
            print(line)
        for _ in range(1_000):
            print(line, file=sys.stderr)
        tell(f"done-{rank}")
        """
    )
    result = run(path, workers=2, log_dir=str(tmp_path / "logs"))
    assert (result.returncode, len(result.stdout)) == (0, 10_000_000)
    for rank in range(2):
        assert (tmp_path / "logs" / f"worker-{rank}.log").stat().st_size > 10_100_000


def test_a_script_that_closes_its_output_goes_on(script):
    path = script(
        """
        print("last words", flush=True)
        sys.stdout.close()
        os.close(1)
        time.sleep(0.3)
        tell(f"done-{rank}")
        print("still here", file=sys.stderr)
        """
    )
    result = run(path, workers=2)
    assert (result.returncode, result.stdout) == (0, "last words\n"), result.stderr
    assert "still here" in result.stderr
    assert (path.parent / "done-1").exists()


def test_the_last_words_of_a_worker_that_dies_without_warning_are_there(script):
    path = script("print('last words'); os.kill(os.getpid(), signal.SIGKILL)")
    assert run(path, workers=1).stdout == "last words\n"


def test_when_the_reader_leaves_the_worker_learns_it_as_without_a_launcher(script, start):
    path = script("for _ in range(1_000_000):\n    print('line')\n")
    process = start(path, workers=1)
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    _, stderr = process.communicate(timeout=DEADLINE_S)
    assert "BrokenPipeError" in stderr
    assert process.returncode == 1


def test_worker_0_reads_the_standard_input_and_the_others_find_it_empty(script):
    path = script("text = sys.stdin.read(); tell(f'read-{rank}', text)")
    subprocess.run(command(path, workers=2), input=b"some data", timeout=DEADLINE_S, check=True)
    assert (path.parent / "read-0").read_text() == "some data"
    assert (path.parent / "read-1").read_text() == ""


def test_one_stream_for_both_outputs_keeps_their_order(script):
    path = script("for n in range(50):\n    print(n)\n    print(n, file=sys.stderr)\n")
    output = subprocess.run(
        command(path, workers=1),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    ).stdout
    assert output.split() == [str(n) for n in range(50) for _ in range(2)]


def test_a_launcher_without_standard_streams(script, tmp_path):
    path = script("print('to the log'); tell('done')")
    shell = [
        "sh",
        "-c",
        'exec "$@" <&- >&- 2>&-',
        "sh",
        *command(path, workers=2, log_dir=str(tmp_path / "logs")),
    ]
    assert subprocess.run(shell, timeout=DEADLINE_S).returncode == 0
    assert "to the log" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_interpreter_options_reach_the_workers(script):
    path = script("print(sys.flags.optimize, sys.flags.dev_mode, sys.warnoptions[-1])")
    result = run(path, workers=1, flags=("-O", "-X", "dev", "-W", "ignore"))
    assert result.stdout == "1 True ignore\n"


def test_a_missing_script_is_refused_before_anything_starts(tmp_path):
    result = run(tmp_path / "missing.py", workers=2)
    assert "missing.py" in result.stderr
    assert "UsageError" in result.stderr


def test_a_module(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text("import sys; print(__name__, __package__, sys.argv[1:])")
    monkeypatch.chdir(tmp_path)
    result = run("package.train", "-m", "x", workers=1, kind="module")
    assert result.stdout == "__main__ package ['-m', 'x']\n"


def test_a_launcher_inside_a_worker(script, tmp_path):
    path = script(
        f"""
        if len(sys.argv) > 1:
            print("inner", rank, os.environ["TRIREME_WORKERS"].count(","))
        elif rank == 0:
            subprocess.run({command("SCRIPT", "inner", workers=3)!r}, check=True)
        """
    )
    path.write_text(path.read_text().replace("'SCRIPT'", repr(str(path))))
    result = run(path, workers=2)
    assert (result.returncode, result.stdout) == (0, "inner 0 2\n"), result.stderr


def test_a_full_disk_costs_the_log_and_not_the_run(script, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    path = script("for n in range(1000):\n    print(n)\n")
    job = command(path, workers=1, log_dir=str(logs))
    # A limit on the size of files is the disk that anybody can fill.
    shell = ["sh", "-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh", *job]
    result = subprocess.run(shell, capture_output=True, text=True, timeout=DEADLINE_S)
    assert result.stdout.split() == [str(n) for n in range(1000)]
    assert result.stderr.count("log file takes no more") == 1
    assert result.returncode == 0


def test_nothing_is_left_in_the_launcher(script):
    """Descriptors, threads and handlers, for a process that launches again and again."""
    code = (
        "import os, signal, sys, threading\n"
        "from dataclasses import replace\n"
        "from trireme.launch.local import run\n"
        "from trireme.launch.planning import plan\n"
        "def state():\n"
        "    return len(os.listdir('/proc/self/fd')), threading.active_count(), signal.getsignal(signal.SIGINT)\n"
        "job = replace(plan(sys.argv[1], workers=2, backend='tensorflow'), entry='trireme.launch.worker_process')\n"
        "run(job)\n"
        "before = state()\n"
        "run(job)\n"
        "assert state() == before, (state(), before)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(script("print('x')"))], timeout=DEADLINE_S, check=True)
