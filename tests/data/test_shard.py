from hypothesis import given
from hypothesis import strategies as st

from trireme.data import local_rows, rows_of


@given(st.integers(0, 1000), st.integers(1, 40))
def test_every_row_goes_to_exactly_one_worker_in_order(num_rows, num_workers):
    rows = [row for rank in range(num_workers) for row in range(*rows_of(num_rows, rank, num_workers))]
    assert rows == list(range(num_rows))


@given(st.integers(0, 1000), st.integers(1, 40))
def test_shares_differ_by_at_most_one_row(num_rows, num_workers):
    shares = [local_rows(num_rows, rank, num_workers) for rank in range(num_workers)]
    assert max(shares) - min(shares) <= 1
