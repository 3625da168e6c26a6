"""The progress board: what a worker posts is what its launcher reads, across processes."""

import os
import subprocess
import sys
import time

import pytest

from trireme.cluster.board import BOARD_FD, RUNNING, STARTING, WAITING, Board, Entry


@pytest.fixture
def board():
    board = Board.create(3)
    yield board
    board.close()
    os.close(board.fd)


def test_every_worker_starts_without_a_step(board):
    assert [(entry.rank, entry.pid, entry.step, entry.state) for entry in board.read()] == [
        (0, 0, None, STARTING),
        (1, 0, None, STARTING),
        (2, 0, None, STARTING),
    ]


def test_a_post_changes_one_line_and_only_what_it_names(board):
    board.post(1, step=7, state=RUNNING)
    board.post(1, state=WAITING)
    first, second, third = board.read()
    assert (second.pid, second.step, second.state) == (os.getpid(), 7, WAITING)
    board.post(1, step=8)
    assert board.read()[1].state == WAITING
    assert board.read()[1].step == 8
    assert (first.pid, third.pid) == (0, 0)


def test_the_rows_of_a_step_stay_while_steps_are_posted(board):
    board.post_rows_per_step(1, 64)
    board.post(1, step=8)
    assert [entry.rows_per_step for entry in board.read()] == [None, 64, None]
    board.post_rows_per_step(1, None)
    assert board.read()[1].rows_per_step is None


def test_the_time_is_that_of_the_change(board):
    before = time.monotonic()
    board.post(2, state=WAITING)
    after = time.monotonic()
    assert before - 1e-3 <= board.read()[2].since_s <= after + 1e-3


def test_an_unknown_state_is_refused(board):
    with pytest.raises(ValueError):
        board.post(0, state="sleeping")


def test_another_process_posts_on_the_inherited_board(board):
    script = (
        "import os\n"
        "from trireme.cluster.board import Board\n"
        "Board.attach(os.environ).post(2, step=41, state='waiting')\n"
        "print(os.getpid())\n"
    )
    environ = {**os.environ, BOARD_FD: str(board.fd)}
    output = subprocess.check_output(
        [sys.executable, "-c", script], env=environ, pass_fds=[board.fd], text=True, timeout=60
    )
    entry = board.read()[2]
    assert entry == Entry(2, int(output), 41, WAITING, entry.since_s)


def test_attaching_without_a_board_is_none(board, tmp_path):
    assert Board.attach({}) is None
    assert Board.attach({BOARD_FD: "not a number"}) is None
    assert Board.attach({BOARD_FD: "9" * 30}) is None
    with open(tmp_path / "other file", "w+b") as other:
        other.write(bytes(4096))
        other.flush()
        # The number may stand for anything in a child that inherited the variable alone.
        assert Board.attach({BOARD_FD: str(other.fileno())}) is None
        os.fstat(other.fileno())
        closed = other.fileno()
    assert Board.attach({BOARD_FD: str(closed)}) is None


def test_the_memory_is_gone_with_the_last_process():
    board = Board.create(1)
    assert "memfd:trireme-board" in os.readlink(f"/proc/self/fd/{board.fd}")
    board.close()
    os.close(board.fd)
    assert not [name for name in os.listdir("/dev/shm") if "trireme-board" in name]
