"""All-reduce: a copy of the model on every device, and the mean of their gradients in each step."""

import os
from typing import Any

from trireme.cluster.cluster import Cluster
from trireme.cluster.resolve import resolve
from trireme.errors import UsageError
from trireme.launch.relaunch import relaunch
from trireme.strategies.strategy import Strategy, loaded_backend


class MirroredStrategy(Strategy):
    """Trains a copy of the model on every device of the run, with the numbers one device would give.

    Each step takes the replicas' rows of one global batch and applies the mean of their gradients everywhere. In
    a process that `trireme run` started, the replicas are those of the run. In a plain `python train.py` they
    are the devices of this machine; where that takes several processes (TensorFlow, PyTorch), the process
    replaces itself by `trireme run`, and the script begins again in every worker. Where the environment says that
    this process is one of several (`TF_CONFIG`, Slurm, MPI, torchrun, Kubernetes; see `trireme explain`), it replaces
    itself by that worker.

    Args:
        num_replicas: number of copies. Default: all of the run's, or all devices of this machine. A CPU counts as
            one device; with a number, as many as asked for.
        sync_batch_norm: whether `keras.layers.BatchNormalization` takes the mean and variance of the rows of all
            replicas, as one device would. Default: on tensorflow and torch each replica normalises by its own rows,
            and the moving statistics are averaged; on jax they are those of all rows in any case.

    Raises:
        UsageError: `num_replicas` contradicts how the process was started.
        RelaunchImpossible: several processes are needed in a notebook, a REPL or a test;
            `trireme.launch(function, replicas=N)` works there.
    """

    def __init__(self, num_replicas: int | None = None, *, sync_batch_norm: bool = False) -> None:
        if num_replicas is not None and (not isinstance(num_replicas, int) or num_replicas < 1):
            raise UsageError(
                f"num_replicas is {num_replicas!r}; it must be a whole number of at least 1, or None."
            )
        servers = resolve(os.environ).servers
        if is_worker() and servers:
            raise UsageError(
                f"{type(self).__name__} has no use for the {len(servers)} parameter servers of this run. Leave out "
                "--servers, or take ParameterServerStrategy."
            )
        backend = loaded_backend()
        cluster = backend.cluster if is_worker() else _cluster_of_plain_process(backend, num_replicas)
        if num_replicas not in (None, cluster.num_replicas):
            raise UsageError(
                f"{type(self).__name__}(num_replicas={num_replicas}) runs in {cluster!r}, which has "
                f"{cluster.num_replicas} replicas. Leave num_replicas out, or start "
                f"`trireme run --replicas {num_replicas} ...`."
            )
        super().__init__(cluster, backend)
        self.sync_batch_norm = sync_batch_norm


class MultiWorkerMirroredStrategy(MirroredStrategy):
    """`MirroredStrategy` by the name it has in `tf.distribute` when the replicas are on several machines.

    Args:
        sync_batch_norm: see `MirroredStrategy`.
    """

    def __init__(self, *, sync_batch_norm: bool = False) -> None:
        super().__init__(sync_batch_norm=sync_batch_norm)


def is_worker() -> bool:
    """Returns whether this process was started as a worker by Trireme's launcher."""
    return bool(os.environ.get("TRIREME_RELAUNCHED"))


def _cluster_of_plain_process(backend: Any, num_replicas: int | None) -> Cluster:
    """Returns the cluster of a process that no launcher of ours started, or replaces it by one that was."""
    if resolve(os.environ).num_workers > 1:
        relaunch(num_workers=1)
    num_replicas = num_replicas or backend.num_local_devices()
    if num_replicas > 1 and not backend.drive(num_replicas):
        relaunch(**backend.processes_for(num_replicas))
    backend.cluster = Cluster(replicas_per_worker=num_replicas)
    return backend.cluster
