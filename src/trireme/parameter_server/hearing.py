"""Who was heard lately. Time comes from outside, as numbers."""

from __future__ import annotations

from collections.abc import Collection


class Hearing:
    """Finds the workers that were silent for more than `timeout_s`.

    Words are counted at the tick after them: a server that was busy or stopped finds them in its queue first.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._heard: set[int] = set()
        self._last_s: dict[int, float] = {}
        self._now_s: float | None = None

    def heard(self, worker: int) -> None:
        self._heard.add(worker)

    def silent(self, now_s: float, workers: Collection[int]) -> list[int]:
        """Those of `workers` whose last words are older than the time-out."""
        # After a gap this process itself was stopped: it could not have heard anybody, so nobody is silent.
        was_stopped = self._now_s is not None and now_s - self._now_s > self._timeout_s / 2
        self._now_s = now_s
        for worker in workers if was_stopped else self._heard:
            self._last_s[worker] = now_s
        self._heard = set()
        return [w for w in sorted(workers) if now_s - self._last_s.setdefault(w, now_s) > self._timeout_s]

    def forget(self, worker: int) -> None:
        self._heard.discard(worker)
        self._last_s.pop(worker, None)
