"""What a person sees of a run while it goes on: worker 0's output, and below it a table that changes."""

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trireme.launch.kubernetes.observation import PodState, RunState
from trireme.launch.kubernetes.table import fitting, rich_table, rows
from trireme.launch.progress_line import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

ProgressOf = Callable[[PodState], Progress | None]
_LINES_FOR_OUTPUT = 8


class Screen(ABC):
    """Shows a run. `write` may be called on any thread, the rest on one."""

    @abstractmethod
    def write(self, output: bytes) -> None:
        """Adds to worker 0's output."""

    @abstractmethod
    def show(self, state: RunState, progress: ProgressOf, hints: Sequence[str]) -> None:
        """How it stands."""

    def close(self) -> None:
        """Leaves the cursor at the beginning of a line."""


def open_screen() -> Screen:
    """The screen of this process: a table where there is a terminal, else lines."""
    is_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))
    return LiveScreen() if is_terminal else LineScreen()


class LineScreen(Screen):
    """For pipes and files: worker 0's output on standard output, changes as lines on standard error."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._seen: dict[tuple[str, int], tuple[str, str]] = {}

    def write(self, output: bytes) -> None:
        sys.stdout.buffer.write(output)
        sys.stdout.buffer.flush()

    def show(self, state: RunState, progress: ProgressOf, hints: Sequence[str]) -> None:
        for pod in state.pods:
            where = f" on {pod.node}" if pod.node else ""
            line = f"{pod.role} {pod.index}: {pod.phase}{where}"
            # Another pod is news, even if all that is seen of it is the same.
            if self._seen.get((pod.role, pod.index)) != (pod.name, line):
                self._seen[pod.role, pod.index] = (pod.name, line)
                _say(line)
        for hint in hints:
            if hint not in self._said:
                _say(hint)
        # What went away and comes again is said again.
        self._said = set(hints)


class LiveScreen(Screen):
    """For a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._lock = threading.Lock()
        self._lines = TerminalLines()
        self._below: list[RenderableType] = []
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._live = Live(
            console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def write(self, output: bytes) -> None:
        from rich.text import Text

        with self._lock:
            for line in self._lines.feed(output):
                self._console.print(Text.from_ansi(line))
            self._refresh()

    def show(self, state: RunState, progress: ProgressOf, hints: Sequence[str]) -> None:
        from rich.text import Text

        lines, left_out = fitting(
            rows(state, progress), max(self._console.height - _LINES_FOR_OUTPUT - len(hints), 2)
        )
        with self._lock:
            self._below = [rich_table(lines, left_out), *(Text(hint, style="yellow") for hint in hints)]
            self._refresh()

    def close(self) -> None:
        from rich.text import Text

        with self._lock:
            if self._lines.open_line:
                self._console.print(Text.from_ansi(self._lines.open_line))
            self._lines = TerminalLines()
            self._refresh()
            self._live.stop()

    def _refresh(self) -> None:
        from rich.console import Group
        from rich.text import Text

        bar = [Text.from_ansi(self._lines.open_line)] if self._lines.open_line else []
        self._live.update(Group(*bar, *self._below), refresh=True)


class TerminalLines:
    """Output as the lines a terminal would show: what is written over is gone.

    Attributes:
        open_line: the line that has not ended yet, such as a progress bar.
    """

    def __init__(self) -> None:
        self.open_line = ""
        self._undecoded = b""

    def feed(self, output: bytes) -> list[str]:
        """The lines that are whole after it."""
        text = self._decode(output)
        *whole, last = (self.open_line + text).split("\n")
        self.open_line = _written_over(last)
        return [_written_over(line.rstrip("\r")) for line in whole]

    def _decode(self, output: bytes) -> str:
        data = self._undecoded + output
        # A character may be cut in two; no more than three bytes of it can be here.
        for cut in range(min(4, len(data) + 1)):
            try:
                text = data[: len(data) - cut].decode()
            except UnicodeDecodeError:
                continue
            self._undecoded = data[len(data) - cut :]
            return text
        self._undecoded = b""
        return data.decode(errors="replace")


def _written_over(line: str) -> str:
    """What is left of a line whose writer went back to its beginning: Keras' bar goes back by many backspaces."""
    start = max(line.rstrip("\r\b").rfind("\r"), line.rstrip("\r\b").rfind("\b")) + 1
    return line[start:]


def _say(line: str) -> None:
    print(f"trireme: {line}", file=sys.stderr, flush=True)
