"""The file in which a failing worker leaves what happened, for its launcher to read."""

import json
import os
import time
import traceback
from dataclasses import asdict, dataclass
from types import TracebackType

from trireme.errors import EXIT_INTERRUPTED, TriremeError

_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_MACHINERY = ("<frozen runpy>", "<frozen importlib")


@dataclass(frozen=True)
class Failure:
    """How one worker failed.

    Attributes:
        rank: the worker's rank.
        when: the time of the failure, as `time.time()`.
        exception: the name of the exception's type, with its module unless built in; `""` when there was none.
        message: the exception's message, or what is known of the end of a process that left none.
        traceback: as Python prints it, without the frames of our own start-up; may be empty.
        exit_code: what the process ends with; 128 + N for signal N.
        step: the step the worker was in, or None.
        pid: its process.
        role: whether it was a worker or a server.
    """

    rank: int
    when: float
    exception: str
    message: str
    traceback: str
    exit_code: int
    step: int | None = None
    pid: int = 0
    role: str = "worker"


def from_exception(error: BaseException, rank: int, step: int | None = None, role: str = "worker") -> Failure:
    """What an exception that nobody caught says about this worker."""
    return Failure(
        rank=rank,
        when=time.time(),
        exception=_name(type(error)),
        message=str(error),
        traceback=user_traceback(error),
        exit_code=exit_code(error),
        step=step,
        pid=os.getpid(),
        role=role,
    )


def exit_code(error: BaseException) -> int:
    """What a worker ends with when nobody catches `error`."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        # As the kernel keeps it: the low eight bits.
        return error.code & 0xFF if isinstance(error.code, int) else 1
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return error.exit_code if isinstance(error, TriremeError) else 1


def user_traceback(error: BaseException) -> str:
    """The traceback from the first line of user code on; empty for `sys.exit(...)`, which is no accident."""
    if isinstance(error, SystemExit):
        return ""
    frames = _without_start_up(error.__traceback__)
    return "".join(traceback.format_exception(type(error), error, frames))


def write(path: str, failure: Failure) -> None:
    """Writes the file; whoever reads it finds all of it or no file at all."""
    aside = f"{path}.{os.getpid()}.part"
    with open(aside, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(asdict(failure), file)
    os.replace(aside, path)


def read(path: str) -> Failure | None:
    """The failure in the file, or None where there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            return Failure(**json.load(file))
    except FileNotFoundError:
        return None


def _without_start_up(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and _is_start_up(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _is_start_up(filename: str) -> bool:
    return filename.startswith((_OWN_FOLDER, *_MACHINERY))


def _name(kind: type[BaseException]) -> str:
    return (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
