"""Each worker sees its share of the data: no framework."""

from trireme.data.distributed import DistributedDataset, InputContext, distribute_from_function
from trireme.data.shard import local_rows, rows_of

__all__ = ["DistributedDataset", "InputContext", "distribute_from_function", "local_rows", "rows_of"]
