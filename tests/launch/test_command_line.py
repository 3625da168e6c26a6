"""`sys.orig_argv` is taken apart as Python itself reads it."""

import json
import subprocess
import sys

import pytest

from trireme.launch.command_line import (
    CODE,
    INTERACTIVE,
    MODULE,
    SCRIPT,
    STANDARD_INPUT,
    CommandLine,
    interpreter_flags,
    parse,
)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py"], CommandLine((), SCRIPT, "train.py")),
        (["/a b/train it.py", "--x", "a b"], CommandLine((), SCRIPT, "/a b/train it.py", ("--x", "a b"))),
        (["-u", "-O", "train.py"], CommandLine(("-u", "-O"), SCRIPT, "train.py")),
        # What follows the script is the script's, however much it looks like ours.
        (["train.py", "-m", "-c", "-u"], CommandLine((), SCRIPT, "train.py", ("-m", "-c", "-u"))),
        (["-m", "package.train", "3"], CommandLine((), MODULE, "package.train", ("3",))),
        (["-mpackage.train", "-m"], CommandLine((), MODULE, "package.train", ("-m",))),
        (["-uOm", "package", "-"], CommandLine(("-u", "-O"), MODULE, "package", ("-",))),
        (["-X", "dev", "-Xutf8", "t.py"], CommandLine(("-X", "dev", "-X", "utf8"), SCRIPT, "t.py")),
        (["-W", "error", "-Wignore", "t.py"], CommandLine(("-W", "error", "-W", "ignore"), SCRIPT, "t.py")),
        # Letters before one that takes a value, and the value in the same word.
        (["-uWignore", "t.py"], CommandLine(("-u", "-W", "ignore"), SCRIPT, "t.py")),
        (
            ["--check-hash-based-pycs", "always", "t.py"],
            CommandLine(("--check-hash-based-pycs", "always"), SCRIPT, "t.py"),
        ),
        (["-c", "print(1)", "x"], CommandLine((), CODE, "print(1)", ("x",))),
        (["-uc", "print(1)"], CommandLine(("-u",), CODE, "print(1)")),
        (["-", "x"], CommandLine((), STANDARD_INPUT, "", ("x",))),
        ([], CommandLine((), INTERACTIVE)),
        (["-i", "-u"], CommandLine(("-i", "-u"), INTERACTIVE)),
    ],
)
def test_parse(words, expected):
    assert parse(["python", *words]) == expected


def test_flags_leave_out_what_would_wait_for_a_user():
    assert interpreter_flags(["python", "-i", "-u", "-X", "dev", "train.py"]) == ("-u", "-X", "dev")


@pytest.mark.parametrize(
    "flags", [[], ["-u"], ["-uO"], ["-X", "dev"], ["-Wignore", "-s"], ["-bb", "-Xutf8=1"]]
)
def test_the_interpreter_agrees(flags, tmp_path):
    """The flags found, given to another interpreter, make one that was started alike."""
    script = tmp_path / "show it.py"
    script.write_text(
        "import json, sys\n"
        "flags = {n: getattr(sys.flags, n) for n in dir(sys.flags) if not n.startswith(('_', 'n_'))"
        " and not callable(getattr(sys.flags, n))}\n"
        "print(json.dumps([sys.orig_argv, flags, sorted(sys._xoptions), sys.warnoptions]))\n"
    )
    first = show([*flags, str(script), "-x"])
    again = show([*parse(first[0]).flags, str(script), "-x"])
    assert parse(first[0]).target == str(script)
    assert first[1:] == again[1:]


def show(arguments: list[str]) -> list:
    return json.loads(subprocess.check_output([sys.executable, *arguments], timeout=60))
