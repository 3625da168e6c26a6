import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.errors import UsageError
from trireme.parameter_server import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    RowGradient,
    VariableSpec,
    place,
)
from trireme.parameter_server.partition import cut

SHAPES = st.lists(st.integers(0, 12), max_size=3).map(tuple)
PARTITIONERS = st.one_of(
    st.none(),
    st.builds(FixedShardsPartitioner, st.integers(1, 6)),
    st.builds(MinSizePartitioner, st.integers(1, 300), st.integers(1, 6)),
    st.builds(MaxSizePartitioner, st.integers(1, 300), st.none() | st.integers(1, 6)),
)


def variables_of(shapes):
    return [VariableSpec(f"v{index}", shape) for index, shape in enumerate(shapes)]


@settings(deadline=None)
@given(st.lists(SHAPES, min_size=1, max_size=6), st.integers(1, 4), PARTITIONERS)
def test_every_row_is_in_exactly_one_place_and_reassembly_is_identity(shapes, num_servers, partitioner):
    placement = place(variables_of(shapes), num_servers, partitioner)
    placed = [piece.name for slices in placement.by_server for piece in slices]
    assert sorted(placed) == sorted(placement.server_of)
    for index, shape in enumerate(shapes):
        value = np.arange(int(np.prod(shape, dtype=int)), dtype=np.float32).reshape(shape)
        parts = list(placement.split(f"v{index}", value))
        assert all(part.shape == piece.shape for piece, part in parts)
        assert np.array_equal(np.concatenate([part.reshape(-1) for _, part in parts]), value.reshape(-1))
        assert all(np.shares_memory(part, value) for _, part in parts if part.size)


@settings(deadline=None)
@given(st.lists(SHAPES, min_size=1, max_size=10), st.integers(1, 4), PARTITIONERS)
def test_no_server_holds_more_than_the_mean_and_one_slice(shapes, num_servers, partitioner):
    placement = place(variables_of(shapes), num_servers, partitioner)
    loads = placement.server_bytes()
    largest = max(piece.nbytes for slices in placement.by_server for piece in slices)
    assert max(loads) <= sum(loads) / num_servers + largest
    assert sum(loads) == sum(variable.nbytes for variable in variables_of(shapes))


@settings(deadline=None)
@given(SHAPES.filter(len), PARTITIONERS.filter(lambda p: p is not None))
def test_slices_keep_the_partitioners_word(shape, partitioner):
    variable = VariableSpec("v", shape)
    slices = cut(variable, partitioner(variable))
    assert len(slices) <= max(1, shape[0])
    sizes = [piece.nbytes for piece in slices]
    if isinstance(partitioner, FixedShardsPartitioner):
        assert len(slices) == max(1, min(partitioner.num_shards, shape[0]))
    if isinstance(partitioner, MinSizePartitioner):
        assert len(slices) <= partitioner.max_shards
        assert len(slices) == 1 or min(sizes) >= partitioner.min_shard_bytes
    if isinstance(partitioner, MaxSizePartitioner) and partitioner.max_shards is None:
        row_bytes = variable.nbytes // max(1, shape[0])
        assert max(sizes) <= max(partitioner.max_shard_bytes, row_bytes)


@pytest.mark.parametrize(
    ("partitioner", "shape", "num_slices"),
    [
        (MinSizePartitioner(256 << 10, 4), (1000, 16), 1),  # 64 kB
        (MinSizePartitioner(256 << 10, 4), (8192, 16), 2),  # exactly twice the least
        (MinSizePartitioner(256 << 10, 4), (8191, 16), 1),  # two would be under it
        (MinSizePartitioner(256 << 10, 4), (100_000, 16), 4),
        (MinSizePartitioner(256 << 10, 4), (2, 1_000_000), 2),  # a row is never cut
        (MaxSizePartitioner(256 << 10), (100_000, 16), 25),
        (MaxSizePartitioner(256 << 10, 3), (100_000, 16), 3),  # max_shards wins
        (MaxSizePartitioner(100), (3, 1000), 3),  # each row is over it
        (FixedShardsPartitioner(4), (3, 5), 3),
        (FixedShardsPartitioner(4), (), 1),
    ],
)
def test_number_of_slices(partitioner, shape, num_slices):
    assert partitioner(VariableSpec("v", shape)) == num_slices


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.integers(0, 39), max_size=30, unique=True).map(sorted),
    st.integers(1, 5),
)
def test_rows_go_to_the_slice_that_holds_them(num_rows, rows, num_slices):
    rows = np.array([row for row in rows if row < num_rows], np.int64)
    placement = place([VariableSpec("t", (num_rows, 2))], 2, FixedShardsPartitioner(num_slices))
    table = np.zeros((num_rows, 2), np.float32)
    values = np.random.default_rng(0).random((len(rows), 2), np.float32)
    for piece, part in placement.split_gradient("t", RowGradient(rows, values)):
        table[piece.start : piece.stop][part.rows] += part.values
    expected = np.zeros_like(table)
    expected[rows] = values
    assert np.array_equal(table, expected)


@pytest.mark.parametrize("rows", [[-1, 2], [0, 10]])
def test_rows_that_do_not_exist(rows):
    placement = place([VariableSpec("t", (10, 2))], 1)
    with pytest.raises(UsageError, match="rows 0 to 9"):
        list(placement.split_rows("t", np.array(rows)))


def test_fingerprint_tells_placements_apart():
    variables = variables_of([(100, 8), (5,), ()])
    same = place(variables, 2, FixedShardsPartitioner(2))
    assert same.fingerprint == place(list(variables), 2, FixedShardsPartitioner(2)).fingerprint
    others = [
        place(variables, 3, FixedShardsPartitioner(2)),
        place(variables, 2),
        place(
            [dataclasses.replace(variables[0], dtype="float16"), *variables[1:]], 2, FixedShardsPartitioner(2)
        ),
    ]
    assert same.fingerprint not in {other.fingerprint for other in others}


def test_large_tables_lie_on_all_servers():
    placement = place([VariableSpec("small", (10,)), VariableSpec("table", (1_000_000, 16))], 4)
    assert {placement.server_of[piece.name] for piece in placement.by_variable["table"]} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "make",
    [
        lambda: place([VariableSpec("a", ()), VariableSpec("a", ())], 1),
        lambda: place([VariableSpec("a[0:1]", ()), VariableSpec("a", (2,))], 1, FixedShardsPartitioner(2)),
        lambda: place([], 0),
        lambda: FixedShardsPartitioner(0),
        lambda: MinSizePartitioner(0),
        lambda: MaxSizePartitioner(1, 0),
    ],
)
def test_what_cannot_work(make):
    with pytest.raises(UsageError):
        make()
