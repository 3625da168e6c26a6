"""The collectives through shared memory, among real processes and without any framework."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.backends import shared_memory
from trireme.backends.shared_memory import SLOT_BYTES, SharedMemoryGroup
from trireme.errors import PeerTimeout, WorkersOutOfStep


@pytest.fixture
def memory():
    fd = os.memfd_create("test")
    yield fd
    os.close(fd)


def together(fd, size, function, timeout_s=20.0):
    """Runs `function(group)` once for each rank, all at the same time, and returns the results."""
    results = [None] * size

    def run(rank):
        try:
            results[rank] = function(SharedMemoryGroup(fd, rank, size, timeout_s))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@settings(deadline=None, max_examples=30)
@given(
    size=st.integers(2, 4),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
)
def test_several_arrays_are_reduced_as_one(size, lengths, dtype):
    fd = os.memfd_create("test")
    arrays = [[np.arange(n).astype(dtype) * (rank + 1) for n in lengths] for rank in range(size)]

    def reduce(group):
        results = [np.empty_like(array) for array in arrays[group.rank]]
        group.reduce_into(arrays[group.rank], results, np.float32, weight=0.5)
        return results

    try:
        for results in together(fd, size, reduce):
            for index, result in enumerate(results):
                expected = sum(arrays[rank][index].astype("float32") * 0.5 for rank in range(size))
                np.testing.assert_allclose(result, expected, rtol=1e-3)
                assert result.dtype == dtype
    finally:
        os.close(fd)


def test_arrays_longer_than_a_slot_go_through_in_pieces(memory, monkeypatch):
    length = 3 * SLOT_BYTES // 4 + 5
    total = together(memory, 3, lambda group: group.all_reduce(np.full(length, group.rank + 1, np.float32)))
    for result in total:
        assert result.shape == (length,) and (result == 6).all()


def test_half_precision_is_summed_in_single(memory):
    def reduce(group):
        [result] = [np.empty(1, np.float16)]
        group.reduce_into([np.float16([40000])], [result], np.float32, weight=0.5)
        return result

    assert [result[0] for result in together(memory, 2, reduce)] == [40000, 40000]


def test_a_worker_of_weight_zero_adds_nothing_whatever_it_holds(memory):
    def reduce(group):
        result = np.empty(2, np.float32)
        source = np.float32([1, 2]) if group.rank else np.float32([np.nan, np.inf])
        group.reduce_into([source], [result], np.float32, weight=float(group.rank))
        return result

    for result in together(memory, 2, reduce):
        np.testing.assert_array_equal(result, [1, 2])


def test_gather_takes_different_lengths_and_broadcast_gives_the_first(memory):
    def exchange(group):
        rows = np.full((group.rank, 2), group.rank, np.int64)
        return [part.tolist() for part in group.all_gather(rows)], group.broadcast(np.float64(group.rank + 7))

    for gathered, first in together(memory, 3, exchange):
        assert gathered == [[], [[1, 1]], [[2, 2], [2, 2]]]
        assert first == 7


def test_many_operations_in_a_row_stay_in_step(memory):
    def work(group):
        values = []
        for step in range(300):
            values.append(int(group.all_reduce(np.array([step * (group.rank + 1)]))[0]))
            values.append(int(group.all_reduce(np.array([group.rank - step]), op="max")[0]))
        return values

    results = together(memory, 3, work)
    assert results[0] == [value for step in range(300) for value in (6 * step, 2 - step)]
    assert results[1] == results[0] == results[2]


def test_a_missing_worker_is_named_after_the_deadline(memory):
    waits = []
    group = SharedMemoryGroup(memory, 1, 3, timeout_s=0.2, on_wait=waits.append)
    with pytest.raises(PeerTimeout, match=r"Worker 1 waited .* for workers 0, 2 of 3"):
        group.all_reduce(np.zeros(1))
    assert waits == [True]


@pytest.mark.parametrize(
    "exchange",
    [
        lambda group: group.all_reduce(np.zeros(3 + group.rank, np.float32)),
        lambda group: group.all_reduce(np.zeros(3, np.float32 if group.rank else np.int32)),
        lambda group: group.broadcast(np.zeros(8)) if group.rank else group.all_reduce(np.zeros(8)),
    ],
)
def test_workers_that_came_for_different_exchanges_are_told_so(memory, exchange):
    with pytest.raises(WorkersOutOfStep, match=r"worker 0: sum of .*; worker 1: "):
        together(memory, 2, exchange)


def test_nothing_is_left_behind_after_kill_9():
    code = f"""
        import numpy as np, os
        from trireme.backends.shared_memory import SharedMemoryGroup
        group = SharedMemoryGroup(int(os.environ["FD"]), int(os.environ["RANK_OF_TEST"]), 2, 60)
        group.all_reduce(np.zeros({SLOT_BYTES}, np.uint8))
        print("reduced", flush=True)
        group.all_reduce(np.zeros(1)) if os.environ["RANK_OF_TEST"] == "0" else __import__("signal").pause()
    """
    fd = os.memfd_create("trireme-test-segment")
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "FD": str(fd), "RANK_OF_TEST": str(rank)},
            pass_fds=[fd],
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    os.close(fd)
    try:
        for worker in workers:
            assert worker.stdout.readline() == b"reduced\n"
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            worker.stdout.close()
    assert not [name for name in os.listdir("/dev/shm") if "trireme" in name]
    assert not any("trireme-test-segment" in link for link in _open_files())


def _open_files():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                yield os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue


def test_the_layout_leaves_room_for_every_worker():
    assert shared_memory._HEADER_BYTES // shared_memory._LINE_BYTES >= 1024
