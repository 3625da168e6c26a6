"""Which way bytes go between workers."""

import os
import types

import pytest

from trireme.backends.shared_memory import FD_VARIABLE
from trireme.backends.transport import CHOICE_VARIABLE, join_group
from trireme.cluster.cluster import Cluster
from trireme.errors import ConfigurationError

ONE_MACHINE = ("127.0.0.1:0", "127.0.0.1:0")
TWO_MACHINES = ("10.0.0.1:29500", "10.0.0.2:29500")


@pytest.fixture
def join(monkeypatch):
    """Returns a function that says whether workers of a cluster join through shared memory."""
    fd = os.memfd_create("test")

    def join(workers, has_memory, on_cpu, choice):
        backend = types.SimpleNamespace(cluster=Cluster(workers), timeout_s=1.0, report_waiting=None)
        if has_memory:
            monkeypatch.setenv(FD_VARIABLE, str(fd))
        if choice is not None:
            monkeypatch.setenv(CHOICE_VARIABLE, choice)
        return join_group(backend, on_cpu) is not None

    yield join
    os.close(fd)


@pytest.mark.parametrize(
    ("workers", "has_memory", "on_cpu", "choice", "expected"),
    [
        (ONE_MACHINE, True, True, None, True),
        (ONE_MACHINE, True, True, "auto", True),
        (ONE_MACHINE, True, True, "runtime", False),
        # GPUs have faster ways, but one may ask for it.
        (ONE_MACHINE, True, False, None, False),
        (ONE_MACHINE, True, False, "shared_memory", True),
        # Workers that somebody else started, and workers of several machines, share no memory.
        (ONE_MACHINE, False, True, None, False),
        (TWO_MACHINES, True, True, None, False),
    ],
)
def test_choice(join, workers, has_memory, on_cpu, choice, expected):
    assert join(workers, has_memory, on_cpu, choice) is expected


@pytest.mark.parametrize(
    ("workers", "choice", "message"),
    [
        (ONE_MACHINE, "nccl", "'nccl'; it can be 'auto', 'shared_memory', 'runtime'"),
        (TWO_MACHINES, "shared_memory", "workers of one machine started by `trireme run`"),
    ],
)
def test_impossible_choices(join, workers, choice, message):
    with pytest.raises(ConfigurationError, match=message):
        join(workers, True, True, choice)
