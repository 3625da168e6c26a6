import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.parameter_server.shares import Over, Range, Shares

NUM_WORKERS = 3


@settings(deadline=None)
@given(
    st.integers(0, 200),
    st.integers(1, 16),
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "ask", "done", "done", "again", "die", "restart"]), st.integers(0, 2)
        ),
        max_size=120,
    ),
    st.randoms(use_true_random=False),
)
def test_every_row_is_counted_once_whatever_happens(num_rows, batch_rows, events, luck):
    shares = Shares(NUM_WORKERS)
    entries: list = []
    held: dict[int, Range] = {}
    stale: list[tuple[int, Range]] = []
    counted = np.zeros(num_rows, int)

    def finish(worker, rows):
        if shares.done(worker, rows.range_id, 0, {"rows": np.array(rows.num_rows)}):
            counted[rows.start : rows.stop] += 1

    def step(what, worker):
        nonlocal shares
        if what == "ask":
            outcome = shares.request(worker, 0, num_rows, batch_rows)
            if isinstance(outcome, Range):
                held[worker] = outcome
        elif what == "done" and worker in held:
            stale.append((worker, held[worker]))
            finish(worker, held.pop(worker))
        elif what == "again" and stale:
            who, rows = luck.choice(stale)
            # A repetition of what was counted is answered alike, so only the first answer is counted here.
            shares.done(who, rows.range_id, 0, {"rows": np.array(rows.num_rows)})
        elif what == "die":
            shares.lost(worker)
            if worker in held:
                stale.append((worker, held.pop(worker)))
        elif what == "restart":
            entries.extend(json.loads(json.dumps(shares.entries())))
            shares = Shares(NUM_WORKERS)
            shares.replay(entries)

    for what, worker in events:
        step(what, worker)
    for worker in itertools.cycle(range(NUM_WORKERS)):
        step("ask", worker)
        if shares.is_over and shares.epoch == 0 and not held:
            break
        step("done", worker)
    assert (counted == 1).all()
    outcome = shares.request(0, 0, num_rows, batch_rows)
    assert isinstance(outcome, Over)
    assert float(outcome.totals.get("rows", 0)) == num_rows


def simulate(num_rows, batch_rows, rows_per_s):
    """When the last worker is done, and how many rows each worked on, with workers of these speeds."""
    shares = Shares(len(rows_per_s))
    clock = [(0.0, worker) for worker in range(len(rows_per_s))]
    rows_of = [0] * len(rows_per_s)
    holding: dict[int, Range] = {}
    end_s = 0.0
    while clock:
        clock.sort()
        now_s, worker = clock.pop(0)
        if worker in holding:
            assert shares.done(worker, holding.pop(worker).range_id, 0, {})
            end_s = now_s
        outcome = shares.request(worker, 0, num_rows, batch_rows)
        if isinstance(outcome, Range):
            holding[worker] = outcome
            rows_of[worker] += outcome.num_rows
            clock.append((now_s + outcome.num_rows / rows_per_s[worker], worker))
    return end_s, rows_of, shares._epoch.next_id


@pytest.mark.parametrize("rows_per_s", [[100, 400], [100, 100, 400, 400], [100] + [400] * 7, [100] * 5])
def test_slow_workers_do_less_and_hold_nobody_up(rows_per_s):
    num_rows, batch_rows = 60_000, 32
    end_s, rows_of, num_ranges = simulate(num_rows, batch_rows, rows_per_s)
    best_s = num_rows / sum(rows_per_s)
    assert end_s <= best_s + 1.5 * batch_rows / min(rows_per_s)
    assert sum(rows_of) == num_rows
    for rows, speed in zip(rows_of, rows_per_s, strict=True):
        assert rows == pytest.approx(num_rows * speed / sum(rows_per_s), rel=0.03)
    assert num_ranges < num_rows / batch_rows / 4


def test_ranges_are_whole_batches_except_for_the_last_rows():
    shares = Shares(2)
    sizes = []
    while isinstance(rows := shares.request(0, 0, 1003, 10), Range):
        sizes.append(rows.num_rows)
        shares.done(0, rows.range_id, 0, {})
    assert all(size % 10 == 0 for size in sizes[:-1])
    assert sizes[-1] == 3
    assert sizes == sorted(sizes, reverse=True)


def test_asking_again_gives_the_same_range():
    shares = Shares(2)
    first = shares.request(0, 0, 100, 10)
    assert shares.request(0, 0, 100, 10) == first
    assert shares.request(1, 0, 100, 10) != first


def test_a_late_done_of_a_lost_worker_counts_nothing():
    shares = Shares(1)
    rows = shares.request(0, 0, 10, 10)
    shares.lost(0)
    again = shares.request(1, 0, 10, 10)
    assert (again.start, again.stop) == (rows.start, rows.stop)
    assert not shares.done(0, rows.range_id, 0, {"n": np.array(10)})
    assert shares.done(1, again.range_id, 0, {"n": np.array(10)})
    assert float(shares.request(1, 0, 10, 10).totals["n"]) == 10


def test_epochs_follow_each_other():
    shares = Shares(2)
    rows = shares.request(0, 0, 4, 4)
    assert shares.request(1, 0, 4, 4) is None  # worker 0 may still be lost
    assert shares.request(1, 1, 4, 4) is None  # not before epoch 0 is over
    shares.done(0, rows.range_id, 0, {"loss": np.array([2.0, 4.0])})
    assert shares.request(1, 0, 4, 4).totals["loss"].tolist() == [2.0, 4.0]
    assert isinstance(shares.request(0, 1, 4, 4), Range)
    assert shares.request(1, 0, 4, 4).totals["loss"].tolist() == [2.0, 4.0]  # asked late
    assert not shares.done(0, rows.range_id, 0, {})


def test_an_open_entry_makes_the_ones_before_superfluous():
    shares = Shares(1)
    rows = shares.request(0, 0, 4, 4)
    shares.done(0, rows.range_id, 0, {"n": np.array(4)})
    shares.close(17)
    shares.entries()
    shares.request(0, 1, 4, 4)
    entries = shares.entries()
    fresh = Shares(1)
    fresh.replay(entries)
    assert [entry["what"] for entry in entries] == ["open", "hand_out"]
    assert fresh.request(0, 0, 4, 4).totals["n"] == 4
    assert fresh.holders() == [0]


def test_different_ideas_of_an_epoch():
    shares = Shares(2)
    shares.request(0, 0, 100, 10)
    assert "100 rows in batches of 10, but worker 1 asks for 100 rows in batches of 20" in shares.request(
        1, 0, 100, 20
    )


def test_replay_at_any_point_gives_the_same_answers():
    luck = random.Random(3)
    shares, twin, entries = Shares(3), Shares(3), []
    for _ in range(200):
        worker = luck.randrange(3)
        if luck.random() < 0.15:
            shares.lost(worker)
        rows = shares.request(worker, 0, 500, 7)
        if isinstance(rows, Range) and luck.random() < 0.8:
            shares.done(worker, rows.range_id, 0, {})
        entries += shares.entries()
        twin = Shares(3)
        twin.replay(entries)
        assert twin.holders() == shares.holders()
        assert twin.is_over == shares.is_over
    assert shares.is_over
