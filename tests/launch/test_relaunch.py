"""A plain run becomes `trireme run`, and nothing else does."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from trireme.errors import RelaunchImpossible
from trireme.launch.relaunch import relaunch, relaunch_command

RUN = ["-m", "trireme", "run"]

# In place of the launcher, tells what would have been executed.
PROGRAM = """
import json, os, sys
from trireme.errors import RelaunchImpossible
from trireme.launch.relaunch import relaunch

def told(path, command):
    os.write(1, json.dumps(command).encode())
    os._exit(0)

def attempt():
    os.execv = told
    try:
        relaunch(num_workers=2)
    except RelaunchImpossible as error:
        print("IMPOSSIBLE", error)
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py"], ["train.py"]),
        # What follows the script is the script's, however much it looks like ours.
        (["train.py", "-m", "--replicas", "9"], ["train.py", "-m", "--replicas", "9"]),
        (["my scripts/train it.py", "a b", ""], ["my scripts/train it.py", "a b", ""]),
        (["-m", "package.train", "-x"], ["-m", "package.train", "-x"]),
        (["-mpackage"], ["-m", "package"]),
    ],
)
def test_command(words, expected):
    command = relaunch_command(["python", *words], "/bin/py thon", 2)
    assert command == ["/bin/py thon", *RUN, "--replicas", "2", "--workers", "2", *expected]


def test_interpreter_options_are_kept():
    command = relaunch_command(["python", "-uO", "-X", "dev", "-Werror", "t.py"], "py", 2)
    assert command[: command.index("--replicas")] == ["py", "-u", "-O", "-X", "dev", "-W", "error", *RUN]


def test_one_worker_of_several_replicas_and_several_of_several():
    assert relaunch_command(["python", "t.py"], "py", 1, 4)[4:] == ["--replicas", "4", "t.py"]
    assert relaunch_command(["python", "t.py"], "py", 2, 4)[4:] == [
        "--replicas",
        "8",
        "--workers",
        "2",
        "t.py",
    ]


def test_a_thousand_arguments():
    arguments = [f"--option-{number}={number}" for number in range(1000)]
    assert relaunch_command(["python", "t.py", *arguments], "py", 2)[-1000:] == arguments


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-c", "code"], "python -c"),
        (["-"], "standard input"),
        ([], "interactive"),
        (["-i", "train.py"], "python -i"),
    ],
)
def test_programs_that_cannot_begin_again(words, reason):
    with pytest.raises(RelaunchImpossible, match=reason) as caught:
        relaunch_command(["python", *words], "py", 2, 2)
    assert "trireme.launch(function, replicas=4)" in str(caught.value)


def test_under_pytest():
    with pytest.raises(RelaunchImpossible, match=r"pytest session.*trireme\.launch\(function, replicas=3\)"):
        relaunch(num_workers=3)


def python(*arguments: object, program: str = "", **environ: str) -> str:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        input=program,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


@pytest.fixture
def script(tmp_path):
    def write(code: str):
        path = tmp_path / "my script.py"
        path.write_text(PROGRAM + textwrap.dedent(code))
        return path

    return write


def test_a_script_is_executed_anew_with_what_it_has_printed_flushed(script):
    path = script("print('before', end='')\nattempt()\n")
    output = python("-u", "-X", "dev", path, "a b", "-m")
    assert output.startswith("before")
    expected = ["-u", "-X", "dev", *RUN, "--replicas", "2", "--workers", "2", str(path), "a b", "-m"]
    assert json.loads(output.removeprefix("before"))[1:] == expected


def test_buffered_output_is_flushed(script):
    output = python(script("sys.stdout.write('no newline ')\nattempt()\n"))
    assert output.startswith("no newline [")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import threading; t = threading.Thread(target=attempt, name='other'); t.start(); t.join()",
            "'other'",
        ),
        ("sys.ps1 = '>>> '; attempt()", "interactive"),
        (
            "import types; sys.modules['IPython'] = types.SimpleNamespace(get_ipython=lambda: 1); attempt()",
            "notebook",
        ),
        ("sys.executable = ''; attempt()", "path of its own interpreter"),
    ],
)
def test_processes_that_cannot_be_replaced(script, code, reason):
    output = python(script(code))
    assert output.startswith("IMPOSSIBLE")
    assert reason in output


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_multiprocessing_child(script, method):
    path = script(
        f"""
        import multiprocessing
        if __name__ == "__main__":
            child = multiprocessing.get_context({method!r}).Process(target=attempt)
            child.start()
            child.join()
        """
    )
    output = python(path)
    assert output.startswith("IMPOSSIBLE")
    assert "multiprocessing" in output


def test_a_worker_is_not_launched_again(script):
    assert "is a worker already" in python(script("attempt()\n"), TRIREME_RELAUNCHED="1")


def test_standard_input():
    assert "standard input" in python("-", program=PROGRAM + "attempt()\n")


def test_a_repl():
    output = python("-i", program=PROGRAM + "\nattempt()\n")
    assert "IMPOSSIBLE" in output
    assert "interactive" in output


def test_the_backend_chosen_in_the_program_is_kept(script, tmp_path):
    (tmp_path / "keras.py").write_text("class backend:\n    backend = staticmethod(lambda: 'jax')\n")
    path = script(
        """
        import keras
        os.execv = lambda path, command: print(os.environ["KERAS_BACKEND"])
        relaunch(num_workers=2)
        """
    )
    assert python(path, KERAS_BACKEND="tensorflow").strip() == "jax"
