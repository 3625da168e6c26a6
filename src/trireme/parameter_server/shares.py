"""The rows of an epoch, handed out in small ranges: a worker four times slower asks a quarter as often.

A range belongs to one worker until it is done. When that worker is lost, the range goes to the next one who
asks, and a late "done" of the lost worker is turned down. So every row is counted exactly once per epoch.

The first ranges are large and the last are single batches (guided self-scheduling, Polychronopoulos and Kuck,
1987): a range is 1/8 of an even share of the rows that are left, so the slowest worker holds up the end of an
epoch by about one batch, and a range of the slowest never takes longer than what the others still have to do,
as long as its speed is within a factor of eight of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trireme.parameter_server.gradients import NDArray

_RANGES_PER_EVEN_SHARE = 8
_NUM_REMEMBERED = 16


@dataclass(frozen=True)
class Range:
    """Rows `start` to `stop` of an epoch; `range_id` is different for every time that rows are handed out."""

    epoch: int
    range_id: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Over:
    """All rows of `epoch` are done; `totals` are the sums of what the workers reported."""

    epoch: int
    totals: Mapping[str, NDArray]


@dataclass
class _Epoch:
    number: int
    num_rows: int
    batch_rows: int
    what: str = ""
    next_row: int = 0
    rows_done: int = 0
    next_id: int = 0
    over_step: int | None = None
    returned: list[tuple[int, int]] = field(default_factory=list)
    held: dict[int, Range] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)
    totals: dict[str, NDArray] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.rows_done == self.num_rows

    def wrong_in(self, worker: int, num_rows: int, batch_rows: int, what: str) -> str | None:
        """Does `worker` mean other rows by this epoch than those who opened it? Text if so."""
        if what != self.what:
            return f"worker {worker} asks for rows to {what}, while those of the others are to {self.what}"
        if (num_rows, batch_rows) != (self.num_rows, self.batch_rows):
            return (
                f"epoch {self.number} was opened with {self.num_rows} rows in batches of {self.batch_rows}, "
                f"but worker {worker} asks for {num_rows} rows in batches of {batch_rows}"
            )
        return None


class Shares:
    """Who works on which rows.

    In lock step a range is one batch: the ranges that are handed out between two updates are then the rows of one
    update, in their order. Every change is also an entry of a journal (plain JSON), see `entries`.

    The same entries fed to `replay` of a fresh object give the same state: that is how a server that was
    killed goes on without counting a row twice. An "open" entry makes all entries before it superfluous.
    """

    def __init__(self, num_workers: int) -> None:
        self.is_lock_step = False
        self._num_workers = num_workers
        self._epoch = _Epoch(-1, 0, 1)
        self._overs: dict[int, Over] = {}
        self._entries: list[dict[str, Any]] = []

    @property
    def epoch(self) -> int:
        """The number of the epoch that ranges are handed out of; 0 before the first."""
        return max(0, self._epoch.number)

    @property
    def is_over(self) -> bool:
        return self._epoch.is_over

    def waits_for_opening(self, epoch: int) -> bool:
        """Whether nothing but its beginning keeps workers from taking rows of `epoch`."""
        return epoch > self._epoch.number and self._epoch.is_over

    def holders(self) -> list[int]:
        """The workers with an unfinished range."""
        return sorted(self._epoch.held)

    def entries(self) -> list[dict[str, Any]]:
        """The journal entries since the last call, oldest first."""
        entries, self._entries = self._entries, []
        return entries

    def request(
        self, worker: int, epoch: int, num_rows: int, batch_rows: int, may_open: bool = True, what: str = ""
    ) -> Range | Over | str | None:
        """What `worker` does next in `epoch`: a range, or the epoch is over, or None: ask again later.

        Asking again before `done` gives the same range. Text tells why the request cannot be met.
        """
        current = self._epoch
        if epoch == current.number and (wrong := current.wrong_in(worker, num_rows, batch_rows, what)):
            return wrong
        if epoch < current.number or (epoch == current.number and current.is_over):
            return self._over(epoch)
        if epoch > current.number:
            if not current.is_over or not may_open:
                return None
            self._open(epoch, num_rows, batch_rows, what)
            return self.request(worker, epoch, num_rows, batch_rows, may_open, what)
        return current.held.get(worker) or self._hand_out(worker)

    def done(self, worker: int, range_id: int, epoch: int, totals: Mapping[str, NDArray]) -> bool:
        """Counts a range; False when it no longer belongs to `worker`, who must forget its totals."""
        current = self._epoch
        if epoch != current.number:
            return False
        if current.finished.get(range_id) == worker:
            return True
        held = current.held.get(worker)
        if held is None or held.range_id != range_id:
            return False
        del current.held[worker]
        current.finished[range_id] = worker
        current.rows_done += held.num_rows
        wide = {name: np.asarray(value, np.float64) for name, value in totals.items()}
        for name, value in wide.items():
            current.totals[name] = current.totals[name] + value if name in current.totals else value
        self._note("done", worker=worker, range_id=range_id, epoch=epoch, totals=_to_lists(wide))
        return True

    def close(self, step: int) -> None:
        """Fixes the step at which everybody goes on, once the epoch is over; the first call counts."""
        if self._epoch.is_over and self._epoch.over_step is None:
            self._epoch.over_step = step
            self._note("close", step=step)

    def over_step(self, epoch: int) -> int:
        """The step at which everybody goes on after `epoch`; 0 for one that is long over."""
        return (self._epoch.over_step or 0) if epoch == self._epoch.number else 0

    def lost(self, worker: int) -> None:
        """Takes back what `worker` has not finished."""
        held = self._epoch.held.pop(worker, None)
        if held is not None:
            self._epoch.returned.append((held.start, held.stop))
            self._note("lost", worker=worker)

    def fits(self, totals: Mapping[str, NDArray]) -> bool:
        """Can `totals` be added to those of this epoch (same shapes)?"""
        known = self._epoch.totals
        return all(name not in known or known[name].shape == value.shape for name, value in totals.items())

    def replay(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Repeats journal entries, oldest first."""
        for entry in entries:
            content = {name: value for name, value in entry.items() if name != "what"}
            if entry["what"] == "open":
                previous, totals = content.pop("previous"), _from_lists(content.pop("previous_totals"))
                self._open(what=content.pop("purpose"), **content)
                self._remember(Over(previous, totals))
            elif entry["what"] == "hand_out":
                self._hand_out(**content)
            elif entry["what"] == "done":
                totals = _from_lists(content.pop("totals"))
                self.done(**content, totals=totals)
            elif entry["what"] == "close":
                self.close(**content)
            elif entry["what"] == "lost":
                self.lost(**content)
        self._entries = []

    def _open(self, epoch: int, num_rows: int, batch_rows: int, what: str) -> None:
        over = Over(self._epoch.number, self._epoch.totals)
        self._remember(over)
        self._epoch = _Epoch(epoch, num_rows, batch_rows, what)
        previous = {"previous": over.epoch, "previous_totals": _to_lists(over.totals)}
        note = {"epoch": epoch, "num_rows": num_rows, "batch_rows": batch_rows, "purpose": what}
        self._note("open", **note, **previous)

    def _over(self, epoch: int) -> Over:
        if epoch == self._epoch.number:
            return Over(epoch, self._epoch.totals)
        return self._overs.get(epoch) or Over(epoch, {})

    def _remember(self, over: Over) -> None:
        """Keeps the totals of some epochs: a worker may ask when the others are already further than the next one."""
        self._overs[over.epoch] = over
        if len(self._overs) > _NUM_REMEMBERED:
            del self._overs[min(self._overs)]

    def _hand_out(self, worker: int) -> Range | None:
        current = self._epoch
        if current.returned:
            start, stop = current.returned.pop()
            end = min(stop, start + self._size(stop - start))
            if end < stop:
                current.returned.append((end, stop))
        elif current.next_row < current.num_rows:
            start = current.next_row
            end = min(current.num_rows, start + self._size(current.num_rows - start))
            current.next_row = end
        else:
            return None
        current.held[worker] = Range(current.number, current.next_id, start, end)
        current.next_id += 1
        self._note("hand_out", worker=worker)
        return current.held[worker]

    def _size(self, rows_left: int) -> int:
        even_share = rows_left // (self._num_workers * _RANGES_PER_EVEN_SHARE)
        batch_rows = self._epoch.batch_rows
        if self.is_lock_step:
            return batch_rows
        return max(batch_rows, even_share // batch_rows * batch_rows)

    def _note(self, what: str, **content: Any) -> None:
        self._entries.append({"what": what, **content})


def _to_lists(totals: Mapping[str, NDArray]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in totals.items()}


def _from_lists(lists: Mapping[str, Any]) -> dict[str, NDArray]:
    return {name: np.asarray(value, np.float64) for name, value in lists.items()}
