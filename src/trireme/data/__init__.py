"""Each worker sees its share of the data: pure arithmetic, no framework."""

from trireme.data.shard import local_rows, rows_of

__all__ = ["local_rows", "rows_of"]
