"""Where the output of workers goes: to a log file each, and that of the first one to the terminal as well."""

import fcntl
import os
import select
import sys
import termios
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

_CHUNK_BYTES = 1 << 16
_JOIN_S = 0.05
# How long output may be held open after the last worker's end.
_ESCAPED_S = 1.0


@dataclass(frozen=True)
class Console:
    """The two output streams of a launcher, as places to copy a worker's output to.

    Attributes:
        write_out: writes bytes to standard output, or None where there is none.
        write_err: the same for standard error.
        out_terminal: descriptor of the terminal that standard output is, or None.
        err_terminal: the same for standard error.
        is_one_stream: whether both lead to the same place, so that the order among them matters.
    """

    write_out: Callable[[bytes], None] | None
    write_err: Callable[[bytes], None] | None
    out_terminal: int | None = None
    err_terminal: int | None = None
    is_one_stream: bool = False

    @classmethod
    def of_descriptors(cls, out: int = 1, err: int = 2) -> "Console":
        """The console of a process that is a launcher and nothing else."""
        return cls(
            write_out=_writer(out),
            write_err=_writer(err),
            out_terminal=out if _is_terminal(out) else None,
            err_terminal=err if _is_terminal(err) else None,
            is_one_stream=_identity(out) is not None and _identity(out) == _identity(err),
        )

    @classmethod
    def of_streams(cls) -> "Console":
        """The console of a notebook, a REPL or a test: whatever `sys.stdout` and `sys.stderr` are there."""
        if sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__ and sys.stdout is not None:
            return cls.of_descriptors()
        return cls(_text_writer(sys.stdout), _text_writer(sys.stderr))


class Copying:
    """The output of one worker on its way to a log file and the console.

    Args:
        console: where to copy to.
        log_path: the log file, which grows.

    Attributes:
        stdout: descriptor to start the worker with.
        stderr: the same; may be the same one.
    """

    def __init__(self, console: Console, log_path: str) -> None:
        self._console = console
        self._log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._is_log_full = False
        out_source, self.stdout = _channel(console.out_terminal)
        self._sources = {out_source: console.write_out}
        self.stderr = self.stdout
        if not console.is_one_stream:
            err_source, self.stderr = _channel(console.err_terminal)
            self._sources[err_source] = console.write_err
        self._terminals = dict(zip(self._sources, (console.out_terminal, console.err_terminal), strict=False))
        self._open_lines: set[int] = set()
        self._is_writing = False
        self._thread = threading.Thread(target=self._copy, name="trireme-output", daemon=True)

    def start(self) -> None:
        """Starts to copy, once the worker has its ends."""
        for end in {self.stdout, self.stderr}:
            os.close(end)
        self._thread.start()

    def finish(self) -> None:
        """Waits until everything is copied, for as long as the console takes.

        To be called when all workers have ended. A process that escaped them and still holds their
        output is not waited for.
        """
        deadline = time.monotonic() + _ESCAPED_S
        while self._thread.is_alive() and (self._is_writing or time.monotonic() < deadline):
            self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            os.close(self._log)

    def resize(self) -> None:
        """Gives the worker's terminal the size of ours."""
        for source, terminal in self._terminals.items():
            if terminal is not None and source in self._sources:
                with suppress(OSError):
                    _copy_size(terminal, source)

    @property
    def is_at_line_start(self) -> bool:
        """Whether the console's next character begins a line; a progress bar leaves one open."""
        return not self._open_lines

    def _copy(self) -> None:
        poll = select.poll()
        for source in self._sources:
            poll.register(source, select.POLLIN)
        while self._sources:
            source = self._next([fd for fd, _ in poll.poll()])
            chunk = _read(source)
            if not chunk or not self._pass_on(source, chunk):
                # Once the console is gone this end is closed, so that the worker learns what it would
                # have learned without us between them.
                poll.unregister(source)
                del self._sources[source]
                os.close(source)

    def _next(self, ready: list[int]) -> int:
        """The source to read from: one stream shall not break into the other's line."""
        return min(ready, key=lambda source: source not in self._open_lines)

    def _pass_on(self, source: int, chunk: bytes) -> bool:
        """Whether the console took it; the log file need not."""
        self._write_log(chunk)
        if chunk.endswith(b"\n"):
            self._open_lines.discard(source)
        else:
            self._open_lines.add(source)
        write = self._sources[source]
        try:
            self._is_writing = True
            if write is not None:
                write(chunk)
        except (OSError, ValueError):
            return False
        finally:
            self._is_writing = False
        return True

    def _write_log(self, chunk: bytes) -> None:
        if self._is_log_full:
            return
        try:
            _write_all(self._log, chunk)
        except OSError as error:
            # A full disk costs the rest of the log, not the run.
            self._is_log_full = True
            if self._console.write_err is not None:
                with suppress(OSError, ValueError):
                    self._console.write_err(f"trireme: the log file takes no more: {error}\n".encode())


def _channel(terminal: int | None) -> tuple[int, int]:
    """(our end, the worker's end) of a pseudo terminal where we have a terminal, else of a pipe."""
    if terminal is None:
        return os.pipe()
    ours, theirs = os.openpty()
    attributes = termios.tcgetattr(theirs)
    # Our own terminal does all the translating; twice would show, and the log would have its marks.
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    _copy_size(terminal, ours)
    return ours, theirs


def _copy_size(source: int, target: int) -> None:
    size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8))
    fcntl.ioctl(target, termios.TIOCSWINSZ, size)


def _read(source: int) -> bytes:
    try:
        return os.read(source, _CHUNK_BYTES)
    except OSError:
        # What a pseudo terminal says when its last user has gone.
        return b""


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            # Somebody who shares our terminal has made it non-blocking.
            select.select([], [fd], [])


def _writer(fd: int) -> Callable[[bytes], None] | None:
    return (lambda data: _write_all(fd, data)) if _identity(fd) is not None else None


def _text_writer(stream: TextIO | None) -> Callable[[bytes], None] | None:
    if stream is None:
        return None
    decoder = getincrementaldecoder("utf-8")(errors="replace")

    def write(data: bytes) -> None:
        stream.write(decoder.decode(data))
        stream.flush()

    return write


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _identity(fd: int) -> tuple[int, int] | None:
    """What a descriptor leads to, or None when it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino
