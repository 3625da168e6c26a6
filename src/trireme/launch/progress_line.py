"""How far a pod is, as a line in its own log: the one thing that whoever watches a run may always read.

Pods have no token with which they could tell the cluster's API anything, and their ports cannot be reached
from outside. The agent writes such a line every few seconds; a reader takes it out of the log again.
"""

import re
from dataclasses import dataclass

_LINE = re.compile(
    rb"trireme: progress generation=(?P<generation>\d+) step=(?P<step>\d+|-) rows_per_s=(?P<rows>\d+(?:\.\d+)?|-)"
)


@dataclass(frozen=True)
class Progress:
    """What an agent tells of its worker.

    Attributes:
        generation: how often the group was started again.
        step: the last step begun, or None before the first.
        rows_per_s: rows of the global batches trained per second, or None where that is not known.
    """

    generation: int
    step: int | None = None
    rows_per_s: float | None = None

    def to_line(self) -> bytes:
        """What the agent writes. It begins a line of its own wherever the script's output stands.

        The line feed in front is part of it: container runtimes hold output back until a line ends, so it also
        brings the state of a progress bar to the reader, who takes it out again.
        """
        step = "-" if self.step is None else str(self.step)
        rows = "-" if self.rows_per_s is None else f"{self.rows_per_s:.1f}"
        return f"\ntrireme: progress generation={self.generation} step={step} rows_per_s={rows}\n".encode()


class Pace:
    """How fast a worker trains, from the steps it has begun at two moments."""

    def __init__(self) -> None:
        self._before: tuple[int, float] | None = None

    def measure(self, step: int | None, rows_per_step: int | None, now_s: float) -> float | None:
        """The rows per second since the last call; None where that is not known, as after a restart."""
        before, self._before = self._before, None if step is None else (step, now_s)
        if step is None or rows_per_step is None or before is None or step < before[0] or now_s <= before[1]:
            return None
        return (step - before[0]) * rows_per_step / (now_s - before[1])


def parse(line: bytes) -> Progress | None:
    """The progress in one line of a log, or None for the script's own lines."""
    match = _LINE.fullmatch(line.rstrip(b"\r\n"))
    if match is None:
        return None
    return Progress(
        int(match["generation"]),
        None if match["step"] == b"-" else int(match["step"]),
        None if match["rows"] == b"-" else float(match["rows"]),
    )


class ScriptOutput:
    """A pod's log without the agent's progress lines: what the script wrote.

    Attributes:
        progress: the last progress taken out, or None.
    """

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self._held = b""

    def feed(self, line: bytes) -> bytes:
        """The script's bytes in the log's next line, which ends with a line feed unless it is the last one.

        A line feed that may be the agent's is held back until the next line tells whose it was: behind an
        empty line, and behind a progress bar, which goes back to the beginning of its line by itself.
        """
        progress = parse(line)
        if progress is not None:
            self.progress, self._held = progress, b""
            return b""
        content = line.removesuffix(b"\n")
        may_be_cut = not content or b"\r" in content.rstrip(b"\r") or b"\b" in content
        out, self._held = self._held + content, line[len(content) :]
        if not may_be_cut:
            out, self._held = out + self._held, b""
        return out

    def finish(self) -> bytes:
        """What was held back, once the log has ended."""
        out, self._held = self._held, b""
        return out
