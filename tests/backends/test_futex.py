"""Sleeping on a number in shared memory, among real processes."""

import mmap
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from trireme.backends import futex

SLEEPER = """
import mmap, sys
import numpy as np
from trireme.backends import futex
numbers = np.frombuffer(mmap.mmap(int(sys.argv[1]), mmap.PAGESIZE), np.int64)
numbers[1] = 1
while numbers[0] == 7:
    futex.wait(futex.low_half(numbers.ctypes.data), 7, 60)
print(numbers[0])
"""


@pytest.fixture
def memory():
    fd = os.memfd_create("test")
    os.ftruncate(fd, mmap.PAGESIZE)
    yield fd, np.frombuffer(mmap.mmap(fd, mmap.PAGESIZE), np.int64)
    os.close(fd)


def test_another_process_is_woken_by_the_change(memory):
    fd, numbers = memory
    numbers[0] = 7
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE, text=True
    ) as sleeper:
        while not numbers[1]:
            assert sleeper.poll() is None
            os.sched_yield()
        numbers[0] = 8
        futex.wake(futex.low_half(numbers.ctypes.data))
        output, _ = sleeper.communicate(timeout=30)
    assert output == "8\n"


def test_nobody_sleeps_on_a_number_that_has_changed_already(memory):
    numbers = memory[1]
    numbers[0] = 1 << 32 | 5
    start = time.monotonic()
    futex.wait(futex.low_half(numbers.ctypes.data), 4, timeout_s=60)
    assert time.monotonic() - start < 30


def test_a_sleep_ends_at_its_limit(memory):
    start = time.monotonic()
    while time.monotonic() - start < 0.05:
        futex.wait(futex.low_half(memory[1].ctypes.data), 0, timeout_s=0.02)
    assert time.monotonic() - start < 30


def test_an_unknown_processor_naps(memory, monkeypatch):
    monkeypatch.setattr(futex, "_NUMBER", None)
    start = time.monotonic()
    futex.wait(futex.low_half(memory[1].ctypes.data), 0, timeout_s=60)
    futex.wake(futex.low_half(memory[1].ctypes.data))
    assert time.monotonic() - start < 30
