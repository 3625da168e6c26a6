"""Which rows of a global batch a worker takes.

The rows of a batch are cut into consecutive runs, one per worker in rank order, whose lengths differ by at
most one. Concatenating the runs in rank order gives the batch again: nothing dropped, nothing twice. A
batch with fewer rows than workers leaves some workers an empty run.
"""

from typing import Any


def rows_of(num_rows: Any, rank: int, num_workers: int) -> tuple[Any, Any]:
    """Returns `(start, stop)`: the rows of a batch of `num_rows` rows that belong to worker `rank`.

    Plain integer arithmetic only, so that it works on Python integers and on integer tensors alike.

    Args:
        num_rows: rows of the global batch; an integer or a scalar integer tensor.
        rank: index of the worker, `0 <= rank < num_workers`.
        num_workers: workers that share the batch.
    """
    return num_rows * rank // num_workers, num_rows * (rank + 1) // num_workers


def local_rows(num_rows: Any, rank: int, num_workers: int) -> Any:
    """Returns how many rows of a batch of `num_rows` rows belong to worker `rank`."""
    start, stop = rows_of(num_rows, rank, num_workers)
    return stop - start
