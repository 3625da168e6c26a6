"""The signals that a launcher receives while it stands between its workers and whoever sends them."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType


class Signals:
    """The signals that a launcher receives for its workers, while it is the one that receives them.

    Entered, it takes over SIGINT, SIGTERM, SIGHUP (forwarded by the supervisor), SIGTSTP (Ctrl-Z suspends
    the workers too) and SIGWINCH. What the launcher's parent had ignored stays ignored.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.first_s: float | None = None
        self.resumed_s = 0.0
        self.on_suspend: Callable[[], None] = lambda: None
        self.on_resume: Callable[[], None] = lambda: None
        self.on_resize: Callable[[], None] = lambda: None

    @contextmanager
    def taken_over(self) -> Iterator[None]:
        handlers = {
            signal.SIGINT: self._receive,
            signal.SIGTERM: self._receive,
            signal.SIGHUP: self._receive,
            signal.SIGTSTP: self._suspend,
            signal.SIGWINCH: self._resize,
        }
        with ExitStack() as stack:
            for signum, handler in handlers.items():
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    stack.callback(signal.signal, signum, signal.signal(signum, handler))
            yield

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self.received.append(signum)
        if self.first_s is None:
            self.first_s = time.monotonic()

    def _suspend(self, signum: int, frame: FrameType | None) -> None:
        self.on_suspend()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.resumed_s = time.monotonic()
        self.on_resume()

    def _resize(self, signum: int, frame: FrameType | None) -> None:
        self.on_resize()
