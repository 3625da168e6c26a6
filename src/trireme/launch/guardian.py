"""Ends every process of a launcher that was killed before it could do so itself.

Started as a script of its own (`python -I -S guardian.py MARK`), so it imports nothing but the standard
library. It waits for the end of its standard input, which the kernel closes with the launcher.
"""

import os
import signal
import sys
import time

# The variable that a launcher gives to its workers; they hand it on to whatever they start.
LAUNCHER = "TRIREME_LAUNCHER"
DISMISSED = b"done"

_ROUNDS_WITHOUT_A_FIND = 5
_ROUND_S = 0.05
_GIVE_UP_S = 10.0
_TIDY_UP_S = 0.3


def processes_of(mark: str) -> list[int]:
    """The ids of all living processes that carry the mark of one launcher, in whichever session they are."""
    wanted = f"{LAUNCHER}={mark}".encode()
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _carries(name, wanted)]


def kill_processes_of(mark: str, rounds: int = 1) -> bool:
    """Kills all processes that carry the mark, until `rounds` looks in a row have found none.

    Returns whether none is left; a process in uninterruptible sleep cannot be killed at once.
    """
    clean, give_up = 0, time.monotonic() + _GIVE_UP_S
    while clean < rounds:
        found = processes_of(mark)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        clean = 0 if found else clean + 1
        if time.monotonic() > give_up:
            return False
        if clean < rounds:
            time.sleep(_ROUND_S)
    return True


def _carries(pid: str, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return wanted in environ.read().split(b"\0")
    except OSError:
        return False


def main(mark: str) -> None:
    """Waits for the launcher to say that all is done, or to disappear."""
    if sys.stdin.buffer.read() != DISMISSED:
        # The workers died with the launcher. Helpers of theirs outlive them for a moment to tidy up.
        time.sleep(_TIDY_UP_S)
        # A process between its fork and its start does not carry the mark yet, so look several times.
        kill_processes_of(mark, rounds=_ROUNDS_WITHOUT_A_FIND)


if __name__ == "__main__":
    main(sys.argv[1])
