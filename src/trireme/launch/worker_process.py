"""The process part of a worker, without any framework: it ties the process to its launcher and reports its end.

`python -m trireme.launch.worker_process KIND TARGET ARGUMENTS...` is a worker that starts no backend.
"""

import faulthandler
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trireme.cluster.board import BOARD_FD, RUNNING, STARTING, Board
from trireme.cluster.resolve import resolve
from trireme.launch import failure_file, linux
from trireme.launch.render import stacks_file
from trireme.launch.target import Target, run_target
from trireme.launch.variables import FAILURE_FILE, LAUNCHER, LOG_DIR, PORT_FD, SHARED_MEMORY_FD


@dataclass(frozen=True)
class Arguments:
    """The command line of a worker.

    Attributes:
        target: what to run.
        strategy: the name of a strategy to enter around it, or None.
    """

    target: Target
    strategy: str | None = None

    @classmethod
    def parse(cls, words: Sequence[str]) -> "Arguments":
        """Reads `[--strategy=NAME] [--safe-path] KIND TARGET ARGUMENTS...`, which `render` writes."""
        words = list(words)
        strategy, is_path_safe = None, False
        while words[0].startswith("--"):
            option, _, value = words.pop(0).partition("=")
            if option == "--strategy":
                strategy = value
            elif option == "--safe-path":
                is_path_safe = True
            else:
                raise ValueError(f"unknown option {option!r} of a worker")
        kind, target, *arguments = words
        return cls(Target(kind, target, tuple(arguments), is_path_safe), strategy)


def main(work: Callable[[], None]) -> None:
    """Does a worker's work, and ends the process with the exit code that says how it went.

    Args:
        work: returns when all went well. What it raises is left in the failure file, if there is one,
            for the launcher to show; else it is printed as Python does.
    """
    _tie_to_launcher()
    cluster = resolve(os.environ)
    rank = cluster.rank
    board = Board.attach(os.environ)
    _keep_to_this_process()
    _answer_with_stacks(rank, cluster.role)
    _write_line_by_line()
    if board is not None:
        board.post(rank, state=STARTING)
    try:
        work()
    except BaseException as error:
        code = failure_file.exit_code(error)
        _tell(error, rank, cluster.role, board)
        sys.exit(code)


def begin_user_code() -> None:
    """Says that this worker's start is over and the user's program has the word."""
    board = Board.attach(os.environ)
    if board is not None:
        board.post(resolve(os.environ).rank, state=RUNNING)
        board.close()


def _tell(error: BaseException, rank: int, role: str, board: Board | None) -> None:
    path = os.environ.get(FAILURE_FILE)
    if isinstance(error, SystemExit) and not isinstance(error.code, (int, type(None))):
        print(error.code, file=sys.stderr)
    if path:
        step = board.read()[rank].step if board is not None else None
        failure_file.write(path, failure_file.from_exception(error, rank, step, role))
    if isinstance(error, SystemExit):
        return
    has_own_hook = sys.excepthook is not sys.__excepthook__
    if has_own_hook:
        sys.excepthook(type(error), error, error.__traceback__)
    elif not path:
        sys.stderr.write(failure_file.user_traceback(error))


def _tie_to_launcher() -> None:
    launcher = os.environ.get(LAUNCHER, "").partition(".")[0]
    if launcher.isdecimal():
        linux.die_with_parent(int(launcher))


def _keep_to_this_process() -> None:
    """Keeps from the worker's own children what is its alone: inherited descriptors, a way to take SIGTERM."""
    for name in (BOARD_FD, SHARED_MEMORY_FD, PORT_FD):
        number = os.environ.get(name, "")
        if number.isdecimal():
            os.set_inheritable(int(number), False)
    os.register_at_fork(after_in_child=_end_by_sigterm)


def _end_by_sigterm() -> None:
    """Undoes in a fork what JAX's runtime does beneath Python: it takes the signal, for a thread that no fork has."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _answer_with_stacks(rank: int, role: str) -> None:
    """Has SIGUSR1 write the stacks of all threads to a file, whatever the threads are doing."""
    if not faulthandler.is_enabled():
        faulthandler.enable()
    log_dir = os.environ.get(LOG_DIR)
    if log_dir:
        # Unbuffered, and open for as long as the process lives: the signal's handler knows the descriptor only.
        file = open(stacks_file(log_dir, rank, role), "wb", buffering=0)  # noqa: SIM115
        _open_files.append(file)
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def _write_line_by_line() -> None:
    """A log that somebody follows, or that ends with a kill, shall not lack its last lines."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.write_through:
        sys.stdout.reconfigure(line_buffering=True)


_open_files: list[object] = []


if __name__ == "__main__":

    def _work() -> None:
        begin_user_code()
        run_target(Arguments.parse(sys.argv[1:]).target)

    main(_work)
