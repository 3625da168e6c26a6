import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.parameter_server import RowGradient
from trireme.parameter_server.gradients import combine, merge_duplicate_rows

NUM_ROWS = 5
WEIGHTS = st.just(0.0) | st.floats(1e-3, 10)


def dense_of(gradient):
    if not isinstance(gradient, RowGradient):
        return gradient.astype(np.float64)
    table = np.zeros((NUM_ROWS, *gradient.values.shape[1:]))
    np.add.at(table, gradient.rows, gradient.values)
    return table


@st.composite
def gradients(draw):
    numbers = st.floats(-8, 8, width=32)
    if draw(st.booleans()):
        flat = draw(st.lists(numbers, min_size=NUM_ROWS * 2, max_size=NUM_ROWS * 2))
        return np.array(flat, np.float32).reshape(NUM_ROWS, 2)
    rows = draw(st.lists(st.integers(0, NUM_ROWS - 1), max_size=8))
    flat = draw(st.lists(numbers, min_size=2 * len(rows), max_size=2 * len(rows)))
    return RowGradient(np.array(rows, np.int64), np.array(flat, np.float32).reshape(len(rows), 2))


@settings(deadline=None)
@given(gradients())
def test_merged_rows_are_the_same_gradient(gradient):
    if isinstance(gradient, RowGradient):
        merged = merge_duplicate_rows(gradient)
        assert merged.rows.tolist() == sorted(set(gradient.rows.tolist()))
        np.testing.assert_allclose(dense_of(merged), dense_of(gradient), rtol=1e-5, atol=1e-5)


@settings(deadline=None)
@given(
    st.lists(st.tuples(WEIGHTS, st.dictionaries(st.sampled_from("ab"), gradients())), max_size=4),
    st.sampled_from(["mean", "sum"]),
)
def test_combination_is_the_weighted_sum_or_mean(contributions, reduction):
    combined = combine(contributions, reduction)
    total = sum(weight for weight, _ in contributions)
    used = [(weight, pushed) for weight, pushed in contributions if weight > 0]
    assert set(combined) == ({name for _, pushed in used for name in pushed} if total > 0 else set())
    for name, gradient in combined.items():
        terms = [weight * dense_of(pushed[name]) for weight, pushed in used if name in pushed]
        expected = sum(terms) / (total if reduction == "mean" else 1)
        np.testing.assert_allclose(dense_of(gradient), expected, rtol=1e-4, atol=1e-4)
        if isinstance(gradient, RowGradient):
            assert np.all(np.diff(gradient.rows) > 0)


def test_one_push_is_not_copied():
    gradient = np.ones((3, 2), np.float32)
    assert combine([(7.0, {"a": gradient})], "mean")["a"] is gradient


def test_pushes_are_left_as_they_are():
    first, second = np.ones(3, np.float32), np.ones(3, np.float32)
    combine([(1.0, {"a": first}), (1.0, {"a": second})], "sum")
    assert first.tolist() == second.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_are_summed_in_float32(dtype):
    # 256 + 1 is 256 in bfloat16, 2048 + 1 is 2048 in float16: one by one, every 1 would be lost.
    big = np.array([2048.0], dtype)
    ones = [(1.0, {"a": np.array([1.0], dtype)}) for _ in range(64)]
    combined = combine([(1.0, {"a": big}), *ones], "sum")["a"]
    assert combined.dtype == dtype
    assert float(combined[0]) == 2112.0


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (np.zeros((2, 2), int), np.zeros(2)),
        (np.zeros(2), np.zeros(2)),
        (np.zeros(2, int), np.zeros(3)),
        (np.zeros(1, int), np.array(1.0)),
    ],
)
def test_what_is_no_row_gradient(rows, values):
    with pytest.raises(ValueError):
        RowGradient(rows, values)
