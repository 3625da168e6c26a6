"""Sleeping until another process changes a number in memory that both share: Linux' futex.

A sleeper costs no processor time and wakes as soon as it is woken, which no series of naps can do. Where the system
call is not known, `wait` naps.
"""

import ctypes
import platform
import sys
import time

_SYSCALL_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_NUMBER = _SYSCALL_NUMBERS.get(platform.machine())
_WAIT, _WAKE = 0, 1
_EVERYBODY = 0x7FFFFFFF
_NAP_S = 50e-6


class _Duration(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


# Calls through `CDLL` let other threads of the interpreter go on meanwhile.
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [
    ctypes.c_long,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.POINTER(_Duration),
    ctypes.c_void_p,
    ctypes.c_uint32,
]


def wait(address, value, timeout_s):
    """Sleeps while the 32-bit number at `address` is `value`, until woken; at most `timeout_s` seconds.

    It may return early: the caller looks at the number again.
    """
    if _NUMBER is None:
        time.sleep(min(_NAP_S, timeout_s))
        return
    duration = _Duration(int(timeout_s), int(timeout_s % 1 * 1e9))
    _syscall(_NUMBER, address, _WAIT, value & 0xFFFFFFFF, ctypes.byref(duration), None, 0)


def wake(address):
    """Wakes everybody who waits at `address`, in any process."""
    if _NUMBER is not None:
        _syscall(_NUMBER, address, _WAKE, _EVERYBODY, None, None, 0)


def low_half(address):
    """Returns the address of the lower 32 bits of the 64-bit number at `address`."""
    return address if sys.byteorder == "little" else address + 4
