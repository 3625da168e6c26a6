"""All-reduce: a copy of the model on every device, and the mean of their gradients in each step."""

import os
from typing import Any

from trireme.cluster.cluster import Cluster
from trireme.cluster.resolve import resolve
from trireme.errors import UsageError
from trireme.strategies.strategy import Strategy, loaded_backend


class MirroredStrategy(Strategy):
    """Trains a copy of the model on every device of the run, with the numbers one device would give.

    Each step takes the replicas' rows of one global batch and applies the mean of their gradients everywhere. In
    a process that `trireme run` started, the replicas are those of the run. In a plain `python train.py` they
    are the devices of this machine; where that takes several processes (TensorFlow, PyTorch), the process
    replaces itself by `trireme run`, and the script begins again in every worker.

    Args:
        num_replicas: number of copies. Default: all of the run's, or all devices of this machine. A CPU counts as
            one device; with a number, as many as asked for.

    Raises:
        UsageError: `num_replicas` contradicts how the process was started.
        RelaunchImpossible: several processes are needed in a notebook, a REPL or a test;
            `trireme.launch(function, replicas=N)` works there.
    """

    def __init__(self, num_replicas: int | None = None) -> None:
        if num_replicas is not None and (not isinstance(num_replicas, int) or num_replicas < 1):
            raise UsageError(
                f"num_replicas is {num_replicas!r}; it must be a whole number of at least 1, or None."
            )
        backend = loaded_backend()
        if is_worker():
            cluster = backend.cluster
        else:
            cluster = _cluster_of_this_machine(backend, num_replicas)
        if num_replicas not in (None, cluster.num_replicas):
            raise UsageError(
                f"{type(self).__name__}(num_replicas={num_replicas}) runs in {cluster!r}, which has "
                f"{cluster.num_replicas} replicas. Leave num_replicas out, or start "
                f"`trireme run --replicas {num_replicas} ...`."
            )
        super().__init__(cluster, backend)


class MultiWorkerMirroredStrategy(MirroredStrategy):
    """Trains a copy of the model on every device of every machine of the run.

    Who the machines are comes from the environment: `trireme run`, `TF_CONFIG`, Slurm, MPI or Kubernetes; `trireme
    explain` tells what is found. A script that was started by hand with `TF_CONFIG` replaces itself by a worker of that
    cluster. Without any cluster this is `MirroredStrategy`.
    """

    def __init__(self) -> None:
        if not is_worker() and resolve(os.environ).num_workers > 1:
            from trireme.launch.relaunch import relaunch

            relaunch(num_workers=1)
        super().__init__()


def is_worker() -> bool:
    """Returns whether this process was started as a worker by Trireme's launcher."""
    return bool(os.environ.get("TRIREME_RELAUNCHED"))


def _cluster_of_this_machine(backend: Any, num_replicas: int | None) -> Cluster:
    num_replicas = num_replicas or backend.num_local_devices()
    if num_replicas > 1 and not backend.drive(num_replicas):
        from trireme.launch.relaunch import relaunch

        relaunch(**backend.processes_for(num_replicas))
    cluster = Cluster(replicas_per_worker=num_replicas)
    backend.cluster = cluster
    return cluster
