"""`run_workers` gives back what the workers returned, or fails with all that is known."""

import functools
import os
import pathlib
import signal
import sys
import tempfile
import time
from dataclasses import dataclass

import pytest

from trireme import errors
from trireme.cluster.resolve import resolve
from trireme.testing import WorkersFailed, run_workers

CONSTANT = 40


@dataclass(frozen=True)
class Point:
    x: int
    y: int


def helper(x: int) -> int:
    return CONSTANT + x


def who_am_i(*args):
    return resolve(os.environ).rank, os.getpid(), args


def test_results_in_rank_order_from_processes_of_their_own():
    results = run_workers(who_am_i, 3, "a", [1, 2], backend=None)
    assert [(rank, args) for rank, _, args in results] == [(rank, ("a", [1, 2])) for rank in range(3)]
    assert len({pid for _, pid, _ in results} | {os.getpid()}) == 4


def test_functions_and_classes_of_a_test_module_go_and_come_back():
    def local(point):
        return Point(point.x + helper(2), point.y)

    assert run_workers(local, 2, Point(1, 2), backend=None) == [Point(43, 2)] * 2
    assert run_workers(functools.partial(helper, 1), 1, backend=None) == [41]
    assert run_workers(os.path.basename, 1, "a/b", backend=None) == ["b"]


def test_large_arguments_and_results_block_nobody():
    sent = b"x" * 20_000_000
    for received in run_workers(lambda data: data + b"y", 2, sent, backend=None):
        assert received == sent + b"y"


def test_the_environment_of_the_workers(monkeypatch):
    monkeypatch.setenv(
        "TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}'
    )
    (cluster, mine) = run_workers(
        lambda: (resolve(os.environ), os.environ["MINE"]), 2, backend=None, env={"MINE": "a value"}
    )[1]
    assert (cluster.rank, cluster.num_workers, mine) == (1, 2, "a value")


def test_the_first_failure_leads_and_it_is_an_assertion_error():
    def fail():
        rank = resolve(os.environ).rank
        print("last words of", rank)
        if rank == 1:
            raise KeyError("the cause")
        time.sleep(600)

    with pytest.raises(AssertionError) as caught:
        run_workers(fail, 2, backend=None)
    message = str(caught.value)
    assert isinstance(caught.value, WorkersFailed) and isinstance(caught.value, errors.WorkersFailed)
    assert message.startswith("trireme: worker 1 of 2")
    assert 'raise KeyError("the cause")' in message
    assert "last words of 0" in message
    assert "last words of 1" in message


def test_a_timeout_shows_all_stacks():
    def wait_in_vain():
        time.sleep(600)

    began = time.monotonic()
    with pytest.raises(WorkersFailed) as caught:
        run_workers(wait_in_vain, 2, backend=None, timeout_s=2)
    assert time.monotonic() - began < 30
    message = str(caught.value)
    assert "still running after 2 s" in message
    assert message.count("in wait_in_vain") == 2


def test_a_killed_worker_and_a_result_that_cannot_leave_its_process():
    with pytest.raises(WorkersFailed, match="killed by SIGKILL"):
        run_workers(lambda: os.kill(os.getpid(), signal.SIGKILL), 1, backend=None)
    with pytest.raises(WorkersFailed, match=r"returned a \w+ that cannot be pickled"):
        run_workers(lambda: (frame for frame in [sys._getframe()]), 1, backend=None)


def test_what_a_worker_prints_does_not_reach_the_test(capfd):
    run_workers(lambda: print("noise"), 2, backend=None)
    assert capfd.readouterr() == ("", "")


def test_nothing_is_left_on_the_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_workers(who_am_i, 2, backend=None)
    with pytest.raises(WorkersFailed):
        run_workers(lambda: 1 / 0, 2, backend=None)
    assert list(pathlib.Path(tmp_path).iterdir()) == []


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_backend_is_started_before_the_function(backend):
    def find_out():
        import keras

        from trireme.backends import load

        backend = load(keras.backend.backend())
        return (
            backend.name,
            backend.cluster.rank,
            [part.tolist() for part in backend.all_gather(helper_array())],
        )

    def helper_array():
        import numpy as np

        return np.full(1, resolve(os.environ).rank)

    assert run_workers(find_out, 2, backend=backend) == [(backend, rank, [[0], [1]]) for rank in range(2)]


def test_jax_has_a_device_for_each_replica():
    def count():
        import jax

        return len(jax.local_devices()), resolve(os.environ).num_replicas

    assert run_workers(count, 2, backend="jax", replicas_per_worker=2) == [(2, 4)] * 2
