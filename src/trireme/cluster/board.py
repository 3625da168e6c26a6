"""The progress board: where every worker of a machine posts how far it is, for its launcher to read.

The board is anonymous shared memory. The launcher creates it and its workers inherit it, so it has no
name that could outlive the run, and posting costs no system call.
"""

import mmap
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

BOARD_FD = "TRIREME_BOARD_FD"

STARTING = "starting"
RUNNING = "running"
WAITING = "waiting"
STATES = (STARTING, RUNNING, WAITING)

_MAGIC = 0x5452_4952_454D_4531
_HEADER_CELLS = 8
# A cache line for each worker: posting never slows a neighbour down.
_CELLS_PER_WORKER = 8
_CELL_BYTES = 8
_PID, _STEP, _STATE, _SINCE_NS, _ROWS = range(5)


@dataclass(frozen=True)
class Entry:
    """What one worker posted last.

    Attributes:
        rank: the worker's rank.
        pid: its process, or 0 before its first post.
        step: the last step it began, or None when it has not begun one.
        state: `"starting"`, `"running"` or `"waiting"`; waiting means inside a collective, for its peers.
        since_s: the time of the last change, on `time.monotonic()`'s clock.
        rows_per_step: the rows of one step over all replicas, or None where that is not known.
    """

    rank: int
    pid: int
    step: int | None
    state: str
    since_s: float
    rows_per_step: int | None = None


class Board:
    """One line per worker. Each worker writes its own line only; anybody reads all of them."""

    def __init__(self, fd: int, memory: mmap.mmap) -> None:
        self.fd = fd
        self._memory = memory
        # Whole cells of this view are stored at once, so a reader never sees half a number.
        self._cells = memoryview(memory).cast("q")

    @classmethod
    def create(cls, num_workers: int) -> "Board":
        """A board on which every worker is still starting."""
        fd = os.memfd_create("trireme-board", os.MFD_CLOEXEC)
        cells = _HEADER_CELLS + num_workers * _CELLS_PER_WORKER
        os.ftruncate(fd, cells * _CELL_BYTES)
        board = cls(fd, mmap.mmap(fd, cells * _CELL_BYTES))
        board._cells[1] = num_workers
        for rank in range(num_workers):
            board._write(rank, 0, -1, STATES.index(STARTING))
        board._cells[0] = _MAGIC
        return board

    @classmethod
    def attach(cls, environ: Mapping[str, str]) -> "Board | None":
        """The board this process inherited, or None where it inherited none.

        A child of a worker has the variable of its parent's environment but not the memory: it
        gets None as well.
        """
        number = environ.get(BOARD_FD, "")
        if not number.isdecimal():
            return None
        fd = int(number)
        try:
            size = os.fstat(fd).st_size
            if size < _HEADER_CELLS * _CELL_BYTES or size % _CELL_BYTES:
                return None
            memory = mmap.mmap(fd, size)
        except (OSError, ValueError, OverflowError):
            return None
        board = cls(fd, memory)
        if board._cells[0] != _MAGIC:
            board.close()
            return None
        return board

    @property
    def num_workers(self) -> int:
        return self._cells[1]

    def post(self, rank: int, step: int | None = None, state: str | None = None) -> None:
        """Says that `rank`, which is this process, has begun `step` or is in another `state`.

        What is None stays as it was. Costs less than a microsecond.
        """
        line = _HEADER_CELLS + rank * _CELLS_PER_WORKER
        step_cell = self._cells[line + _STEP] if step is None else step
        state_cell = self._cells[line + _STATE] if state is None else STATES.index(state)
        self._write(rank, os.getpid(), step_cell, state_cell)

    def post_rows_per_step(self, rank: int, rows: int | None) -> None:
        """Says how many rows a step of `rank` has over all replicas; None where that is not known."""
        self._cells[_HEADER_CELLS + rank * _CELLS_PER_WORKER + _ROWS] = rows or 0

    def read(self) -> list[Entry]:
        """What every worker posted last, in rank order."""
        return [self._entry(rank) for rank in range(self.num_workers)]

    def close(self) -> None:
        """Lets go of the memory. The descriptor stays open: whoever made or inherited it closes it."""
        self._cells.release()
        self._memory.close()

    def _write(self, rank: int, pid: int, step: int, state: int) -> None:
        cells, line = self._cells, _HEADER_CELLS + rank * _CELLS_PER_WORKER
        # The time goes first: whoever reads in between sees the old state as just begun,
        # never the new one as old.
        cells[line + _SINCE_NS] = time.monotonic_ns()
        cells[line + _PID] = pid
        cells[line + _STEP] = step
        cells[line + _STATE] = state

    def _entry(self, rank: int) -> Entry:
        line = _HEADER_CELLS + rank * _CELLS_PER_WORKER
        pid, step, state, since_ns, rows = self._cells[line : line + _ROWS + 1]
        return Entry(rank, pid, step if step >= 0 else None, STATES[state], since_ns / 1e9, rows or None)
