"""Inputs that a user shards alone: each worker reads data of its own, which together are the global batches."""

import dataclasses
from collections.abc import Callable
from typing import Any

from trireme.cluster.cluster import Cluster
from trireme.errors import UsageError


@dataclasses.dataclass(frozen=True)
class InputContext:
    """What an input function may want to know of the run, as in `tf.distribute.InputContext`.

    Attributes:
        num_input_pipelines: how many inputs are read, one on each worker.
        input_pipeline_id: which of them this worker reads, `0 <= input_pipeline_id < num_input_pipelines`.
        num_replicas_in_sync: replicas of the run.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns the rows of a global batch that each replica gets.

        Raises:
            UsageError: the batch size does not divide by the number of replicas.
        """
        if global_batch_size % self.num_replicas_in_sync:
            low = global_batch_size // self.num_replicas_in_sync * self.num_replicas_in_sync
            choice = f"{low} or {low + self.num_replicas_in_sync}" if low else self.num_replicas_in_sync
            raise UsageError(
                f"The global batch size {global_batch_size} does not divide by {self.num_replicas_in_sync} replicas. "
                f"Take {choice}."
            )
        return global_batch_size // self.num_replicas_in_sync


class DistributedDataset:
    """An input whose batches are this worker's alone; `fit`, `evaluate` and `predict` take it as `x`.

    Attributes:
        own: the worker's input, of any kind that Keras takes. Each of its batches is for one replica.
    """

    def __init__(self, own: Any) -> None:
        self.own = own


def distribute_from_function(function: Callable[[InputContext], Any], cluster: Cluster) -> Any:
    """Returns what `function` makes of this worker's `InputContext`, for `fit` to take as the worker's own input."""
    context = InputContext(cluster.num_workers, cluster.rank, cluster.num_replicas)
    own = function(context)
    # One replica is plain Keras, which knows no such thing.
    return own if cluster.num_replicas == 1 else DistributedDataset(own)
