"""What Linux knows about processes and Python does not ask: who dies with whom, who is stopped."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel to kill this process when its parent ends, however that happens.

    Args:
        parent_pid: who the parent must be. Ends this process at once when the parent is gone already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(128 + signal.SIGKILL)


@contextmanager
def subreaper() -> Iterator[None]:
    """Within it, a descendant whose parent ends becomes a child of this process."""
    before = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def children_of(pid: int) -> list[int]:
    """The children of a process, those that have ended and are not reaped among them."""
    children = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = _stat(int(name))
            if fields is not None and fields[1] == str(pid):
                children.append(int(name))
    return children


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP has stopped the process."""
    fields = _stat(pid)
    return fields is not None and fields[0] in ("T", "t")


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler for the signal."""
    try:
        with open(f"/proc/{pid}/status") as status:
            masks = [line.split()[1] for line in status if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(masks) and bool(int(masks[0], 16) >> (signum - 1) & 1)


def _stat(pid: int) -> list[str] | None:
    """State, parent, ... of a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The command's name stands in parentheses and may itself contain any character.
            return stat.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")
