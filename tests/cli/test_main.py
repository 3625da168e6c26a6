import os
import re
import resource
import subprocess
import sys
from importlib import import_module

import click
import pytest

from trireme import __version__
from trireme.cli import main as cli
from trireme.errors import ConfigurationError, PeerLost

# What costs more to import than `trireme --help` may take, or would start a framework's runtime.
HEAVY = {
    "keras",
    "tensorflow",
    "jax",
    "jaxlib",
    "torch",
    "numpy",
    "rich",
    "zmq",
    "cloudpickle",
    "sklearn",
    "pandas",
}


def imported_by(*arguments):
    """The top-level modules that `python -m trireme ARGUMENTS...` imports."""
    command = [sys.executable, "-X", "importtime", "-m", "trireme", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE)}


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--help"], set()),
        (["--version"], set()),
        (["run", "--help"], set()),
        (["explain", "--help"], set()),
        # Explains the frameworks without loading one.
        (["explain"], set()),
    ],
)
def test_no_framework_is_imported(arguments, allowed):
    modules = imported_by(*arguments)
    assert "click" in modules
    assert modules & HEAVY <= allowed


def best_time_s(command):
    """Processor time: the command only computes, and what else runs on the machine is not its fault."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_answers_within_a_fifth_of_a_second():
    # Against a bare interpreter, for the machine may be slow; the best of several, for caches may be cold.
    bare = best_time_s([sys.executable, "-c", "pass"])
    assert best_time_s([sys.executable, "-m", "trireme", "--help"]) - bare < 0.2


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_listed_command_loads_and_says_what_the_list_says(name):
    command = getattr(import_module(f"trireme.cli.{name}"), name)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help.splitlines()[0] == cli.COMMANDS[name]


def test_help_lists_the_commands(capfd):
    assert cli.execute(["--help"]) == 0
    output = capfd.readouterr().out
    for name, summary in cli.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary[:30])}", output, re.MULTILINE)


def test_version(capfd):
    assert cli.execute(["--version"]) == 0
    assert capfd.readouterr().out.strip() == f"trireme {__version__}"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], ["a command is missing", "Usage: trireme"]),
        (["rnu", "s.py"], ["no command 'rnu'", "`trireme run`"]),
        (["train.py"], ["trireme run train.py"]),
        (["nonsense"], ["no command 'nonsense'", "run", "explain"]),
        (["--replicas", "2"], ["--replicas", "trireme --help"]),
        (["run", "--replicas"], ["'--replicas' requires an argument", "trireme run --help"]),
        (["explain", "--verbose"], ["--verbose", "trireme explain --help"]),
    ],
)
def test_usage_mistakes_end_with_64_and_say_what_to_type(capfd, line, words):
    assert cli.execute(line) == 64
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("trireme: ")
    for word in words:
        assert word in captured.err


@pytest.mark.parametrize(
    ("raised", "exit_code", "text"),
    [
        (ConfigurationError("no cluster"), 78, "trireme: no cluster"),
        (PeerLost("worker 1 went away"), 75, "trireme: worker 1 went away"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
    ],
)
def test_what_a_command_raises_becomes_its_exit_code(monkeypatch, capfd, raised, exit_code, text):
    @click.command
    def failing():
        raise raised

    monkeypatch.setattr(cli.Commands, "get_command", lambda self, ctx, name: failing)
    assert cli.execute(["run"]) == exit_code
    assert capfd.readouterr().err.strip() == text


@pytest.mark.parametrize(("returned", "exit_code"), [(None, 0), (0, 0), (3, 3), (143, 143)])
def test_what_a_command_returns_is_the_exit_code(monkeypatch, returned, exit_code):
    @click.command
    def ending():
        return returned

    monkeypatch.setattr(cli.Commands, "get_command", lambda self, ctx, name: ending)
    assert cli.execute(["run"]) == exit_code


def test_a_bug_keeps_its_traceback(monkeypatch):
    @click.command
    def broken():
        raise KeyError("bug")

    monkeypatch.setattr(cli.Commands, "get_command", lambda self, ctx, name: broken)
    with pytest.raises(KeyError):
        cli.execute(["run"])


@pytest.mark.parametrize("command", ["explain", "--help"])
def test_a_reader_that_goes_away_causes_no_traceback(command):
    # The pipe has no reader from the beginning, so that every write to it fails.
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-m", "trireme", command], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, "")
