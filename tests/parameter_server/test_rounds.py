"""How a worker goes through rounds: with the chief, through passed-over ones, and when it joins late."""

import numpy as np
import pytest

from trireme.backends.parameter_server.plan import Plan
from trireme.backends.parameter_server.rounds import Rounds, row_order
from trireme.parameter_server.shares import Over, Range, Shares


class OneServer:
    """As much of a `Client` as rounds need; where a real one waits, this one says that it would."""

    def __init__(self, shares, worker):
        self._shares = shares
        self._worker = worker

    def next_range(self, number, num_rows, batch_rows, may_open, what):
        answer = self._shares.request(self._worker, number, num_rows, batch_rows, may_open, what)
        assert not isinstance(answer, str), answer
        if answer is None:
            raise BlockingIOError
        return answer

    def range_done(self, rows, totals=None):
        return self._shares.done(self._worker, rows.range_id, rows.epoch, totals or {})

    def flush(self):
        pass


class RowReport:
    def __init__(self):
        self.counted = 0

    def totals(self, num_rows):
        self._new = num_rows
        return {"rows": num_rows}

    def settle(self, is_counted):
        self.counted += self._new * is_counted


@pytest.fixture
def two():
    shares = Shares(2)
    return shares, [Rounds(OneServer(shares, worker), is_chief=worker == 0) for worker in (0, 1)]


def test_the_rows_of_a_round_are_all_taken_once(two):
    _, (chief, other) = two
    assert chief.begin(0, "train", 103, 10)
    assert other.begin(0, "train", 103, 10)
    reports, seen = [RowReport(), RowReport()], np.zeros(103, int)
    working = {0: chief.batches(reports[0]), 1: other.batches(reports[1])}
    while working:
        for worker, batches in list(working.items()):
            try:
                start, stop = next(batches)
            except StopIteration:
                del working[worker]
            except BlockingIOError:
                # A real worker waits there, and is given the end of the round.
                working[worker] = iter(())
            else:
                seen[start:stop] += 1
                assert (chief, other)[worker].take_batch().num_rows == stop - start
    assert (seen == 1).all()
    assert reports[0].counted + reports[1].counted == 103
    assert chief.totals == {} and float(chief._answer.totals["rows"]) == 103


def test_only_the_chief_begins_a_round(two):
    _, (chief, other) = two
    with pytest.raises(BlockingIOError):
        other.begin(0, "train", 10, 5)
    assert chief.begin(0, "train", 10, 5)
    assert other.begin(0, "train", 10, 5)


def test_a_round_that_the_chief_passed_over(two):
    _, (chief, other) = two
    chief.begin(0, "train", 5, 5)
    list(chief.batches(RowReport()))
    chief.meet(4, "end")
    assert not other.begin(2, "train", 5, 5)


def test_a_worker_for_whom_nothing_is_left_takes_a_batch_that_does_not_count(two):
    _, (chief, other) = two
    chief.begin(0, "train", 20, 10)
    list(chief.batches(RowReport()))
    assert other.begin(0, "train", 20, 10)
    assert list(other.batches(RowReport())) == [(0, 10)]
    assert other.take_batch().num_rows == 0
    other.finish()
    assert float(other.totals["rows"]) == 20
    assert other.take_batch().num_rows == 0, "a step that comes after the end of its round"


def test_whoever_stops_in_the_middle_passes_over_the_rest(two):
    _, (chief, _) = two
    chief.begin(0, "train", 100, 10)
    batches = chief.batches(RowReport())
    next(batches)
    chief.finish()
    assert isinstance(chief._answer, Over)
    assert float(chief.totals["rows"]) == 100


def test_a_batch_knows_its_part_of_an_update():
    shares = Shares(2)
    shares.is_lock_step = True
    one = Rounds(OneServer(shares, 0), is_chief=True)
    one.begin(0, "train", 26, 8, update_rows=16)
    parts = []
    for _ in one.batches(RowReport()):
        parts.append(one.share_of_batch())
        assert one.take_batch().share == parts[-1]
    assert parts == [1 / 2, 1 / 2, 8 / 10, 2 / 10]
    assert one.share_of_batch() == 0.0


def test_another_purpose_is_an_error(two):
    shares, (chief, _) = two
    chief.begin(0, "evaluate", 10, 5)
    assert "asks for rows to train, while those of the others are to evaluate" in shares.request(
        1, 0, 10, 5, False, "train"
    )


def test_in_lock_step_a_range_is_a_batch():
    shares = Shares(2)
    shares.is_lock_step = True
    ranges = []
    for worker in (0, 1):
        rows = shares.request(worker, 0, 1000, 4)
        ranges.append(rows)
    assert ranges == [Range(0, 0, 0, 4), Range(0, 1, 4, 8)]


@pytest.mark.parametrize(
    ("current_round", "next_epoch"),
    [(0, 2), (10, 2), (11, 3), (12, 3), (13, 4), (14, 4), (100, 5)],
    # Before the fit, in its first training, in the validation after it, in the second training, ..., after the fit.
)
def test_who_joins_goes_on_where_the_others_are(current_round, next_epoch):
    plan = Plan(first_round=10, initial_epoch=2, epochs=5, current_round=current_round)
    assert plan.next_epoch == next_epoch
    assert plan.epochs_left == (next_epoch < 5)
    assert [plan.training_round(epoch) for epoch in (2, 3, 4)] == [10, 12, 14]
    assert plan.validation_round(4) < plan.last_round == 16


def test_the_order_of_rows():
    assert row_order(7, 3, False, [1]).tolist() == list(range(7))
    shuffled = row_order(100, 10, True, [1, 2])
    assert sorted(shuffled) == list(range(100))
    assert shuffled.tolist() == row_order(100, 10, True, [1, 2]).tolist()
    assert shuffled.tolist() != row_order(100, 10, True, [1, 3]).tolist()
    blocks = row_order(7, 3, "batch", [1])
    assert blocks[-1] == 6
    assert sorted(map(tuple, blocks[:6].reshape(2, 3).tolist())) == [(0, 1, 2), (3, 4, 5)]


@pytest.mark.parametrize(("under_way", "next_epoch"), [([1, 2, 3, 4], 1), ([3, 4], 3), ([], 5)])
def test_who_was_away_goes_on_with_the_epoch_under_way(under_way, next_epoch):
    plan = Plan(first_round=0, initial_epoch=0, epochs=5, current_round=2)
    assert plan.begin_next(lambda epoch: epoch in under_way) == bool(under_way)
    assert plan.next_epoch == next_epoch
