"""Replacing a plain `python train.py` by `trireme run train.py`, when its strategy needs several processes."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from trireme.errors import RelaunchImpossible
from trireme.launch.command_line import CODE, INTERACTIVE, MODULE, STANDARD_INPUT, parse
from trireme.launch.variables import RELAUNCHED

_PROGRAMS_WITHOUT_A_FILE = {
    CODE: "its program came as `python -c`",
    STANDARD_INPUT: "its program came from standard input",
    INTERACTIVE: "it is an interactive interpreter",
}


def relaunch(num_workers: int, replicas_per_worker: int = 1, num_servers: int = 0) -> NoReturn:
    """Replaces this process by a launcher that starts the same program as workers. Never returns.

    The program begins again from its first line in every worker. The process keeps its id, its standard
    streams and its working folder.

    Args:
        num_workers: worker processes to start on this machine.
        replicas_per_worker: devices each of them drives.
        num_servers: parameter servers to start on this machine.

    Raises:
        RelaunchImpossible: this process is not a plain run of a script or module; the message says what
            it is and how to start several workers from there.
    """
    obstacle = _obstacle()
    if obstacle is not None:
        raise _impossible(obstacle, num_workers, replicas_per_worker, num_servers)
    command = relaunch_command(sys.orig_argv, sys.executable, num_workers, replicas_per_worker, num_servers)
    _choose_the_same_backend()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        # What is still in a buffer would be lost: the process image is about to go.
        if stream is not None and not stream.closed:
            stream.flush()
    os.execv(command[0], command)


def relaunch_command(
    orig_argv: Sequence[str],
    executable: str,
    num_workers: int,
    replicas_per_worker: int = 1,
    num_servers: int = 0,
) -> list[str]:
    """The `trireme run` command for what `orig_argv` (as `sys.orig_argv`) runs, interpreter options kept.

    Raises:
        RelaunchImpossible: it runs neither a script nor a module.
    """
    line = parse(orig_argv)
    obstacle = _PROGRAMS_WITHOUT_A_FILE.get(line.kind)
    if "-i" in line.flags:
        obstacle = obstacle or "it was started with `python -i`, to become interactive"
    if obstacle is not None:
        raise _impossible(obstacle, num_workers, replicas_per_worker, num_servers)
    options = ["--replicas", str(num_workers * replicas_per_worker)]
    if num_workers > 1:
        options += ["--workers", str(num_workers)]
    if num_servers:
        options += ["--servers", str(num_servers)]
    target = ["-m", line.target] if line.kind == MODULE else [line.target]
    return [executable, *line.flags, "-m", "trireme", "run", *options, *target, *line.arguments]


def _obstacle() -> str | None:
    """Why this very process cannot be replaced whatever its command was, or None."""
    if os.environ.get(RELAUNCHED):
        return "it is a worker already, or a child of one, and its launcher decided how many there are"
    if multiprocessing.parent_process() is not None:
        return "it is a child process of `multiprocessing`"
    if _is_notebook():
        return "it is a notebook or an IPython session"
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return "it is an interactive interpreter"
    # A program that a test starts inherits pytest's variables but has not loaded pytest.
    if "_pytest" in sys.modules and ("PYTEST_VERSION" in os.environ or "PYTEST_CURRENT_TEST" in os.environ):
        return "it is a pytest session"
    if threading.current_thread() is not threading.main_thread():
        return f"the strategy was made in the thread {threading.current_thread().name!r}, not in the main one"
    if not sys.executable:
        return "Python does not know the path of its own interpreter"
    return None


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def _impossible(
    reason: str, num_workers: int, replicas_per_worker: int, num_servers: int
) -> RelaunchImpossible:
    replicas = num_workers * replicas_per_worker
    options = {"replicas": replicas} | ({"servers": num_servers} if num_servers else {})
    need = (
        "several processes"
        if num_workers + num_servers > 1
        else f"a process that sees {replicas} devices from its start"
    )
    who = f"{replicas} replicas" + (f" and {num_servers} parameter servers" if num_servers else "")
    call = ", ".join(f"{name}={count}" for name, count in options.items())
    return RelaunchImpossible(
        f"{who} need {need}, which a launcher starts, and this process cannot become "
        f"that launcher: {reason}. Put the training into a function and call "
        f"trireme.launch(function, {call}), which returns the function's results; or put it "
        f"into a file and type: trireme run {' '.join(f'--{name} {n}' for name, n in options.items())} FILE.py"
    )


def _choose_the_same_backend() -> None:
    """The program may have chosen its backend in another way than by the environment, which is all that stays."""
    keras = sys.modules.get("keras")
    if keras is not None:
        os.environ["KERAS_BACKEND"] = keras.backend.backend()
