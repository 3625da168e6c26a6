"""A launcher adopts what its workers leave, lets go of what has ended, and kills the rest."""

import subprocess
import sys

DEADLINE_S = 60

PROGRAM = """
import os, subprocess, time
from trireme.launch import linux, orphans

def orphan(command):
    subprocess.run(["sh", "-c", f"{command} & echo"], stdout=subprocess.DEVNULL, env={})

def children():
    return len(linux.children_of(os.getpid()))

def wait_until(is_true):
    give_up = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.01)

def is_subreaper():
    import ctypes
    value = ctypes.c_int()
    linux._prctl(linux._PR_GET_CHILD_SUBREAPER, ctypes.addressof(value))
    return value.value
"""


def run(code: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM + code], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert result.returncode == 0, result.stderr


def test_those_that_have_ended_do_not_pile_up():
    run(
        """
orphans._REAP_EVERY_S = 0
kept = subprocess.Popen(["sleep", "60"])
adopted = orphans.Orphans()
adopted.exclude(kept.pid)
with adopted.adopted():
    for _ in range(3):
        orphan("sleep 0.01")
    wait_until(lambda: children() == 4)
    wait_until(lambda: adopted.reap() or children() == 1)
    assert kept.poll() is None
kept.kill()
"""
    )


def test_those_that_live_are_killed_except_what_was_started_here():
    run(
        """
kept = subprocess.Popen(["sleep", "60"])
adopted = orphans.Orphans()
adopted.exclude(kept.pid)
with adopted.adopted():
    orphan("sleep 60")
    wait_until(lambda: children() == 2)
    adopted.kill()
    assert children() == 1 and kept.poll() is None
kept.kill()
"""
    )


def test_who_adopts_nobody_touches_nobody():
    run(
        """
child = subprocess.Popen(["sleep", "60"])
orphans._REAP_EVERY_S = 0
stranger = orphans.Orphans()
stranger.reap()
stranger.kill()
assert child.poll() is None
child.kill()
assert is_subreaper() == 0
with stranger.adopted():
    assert is_subreaper() == 1
assert is_subreaper() == 0
"""
    )
