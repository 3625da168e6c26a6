"""Tells people things without ever waiting for them: a full pipe must not make an agent look dead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType

_GIVE_UP_S = 2.0


class Teller:
    """Calls `say` with each text, in order, in a thread of its own. When left, waits a moment for the last ones."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="trireme-teller", daemon=True)

    def tell(self, text: str) -> None:
        self._texts.put(text)

    def _run(self) -> None:
        while (text := self._texts.get()) is not None:
            self._say(text)

    def __enter__(self) -> Teller:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._texts.put(None)
        self._thread.join(_GIVE_UP_S)
