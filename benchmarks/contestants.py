"""Who is timed: how each contestant is started, with which threads, and on which workloads."""

import os
import pathlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from trireme.cluster.machine import num_cpu_cores

SCRIPT = pathlib.Path(__file__).with_name("contestant.py")

# What a caller's shell may hold and would change the comparison.
_SET_HERE = (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "TF_CONFIG",
    "NPROC",
    "XLA_FLAGS",
    "CUDA_VISIBLE_DEVICES",
)
_ALL = ("resnet", "mlp", "embedding")


@dataclass(frozen=True)
class Contestant:
    """One way to train a model, and the processes that do it.

    Attributes:
        name: what figures call it.
        description: what it is, in a few words, for the report.
        commands: one command for each program to start; `trireme run` starts several processes itself.
        environ: environment of these programs.
        num_processes: processes that train, over all commands.
        workloads: names of the workloads it takes part in.
    """

    name: str
    description: str
    commands: tuple[tuple[str, ...], ...]
    environ: Mapping[str, str]
    num_processes: int
    workloads: tuple[str, ...] = _ALL


def contestants(backend: str, address: str) -> list[Contestant]:
    """Returns all contestants on this machine.

    Args:
        backend: "tensorflow" or "jax".
        address: path of the referee's socket.
    """
    cores = num_cpu_cores()
    whole, half = _environ(backend, cores), _environ(backend, max(1, cores // 2))
    own = {name: value for name, value in whole.items() if name not in _threads(backend, cores)}
    peer = "tf.distribute.MirroredStrategy" if backend == "tensorflow" else "keras.distribution.DataParallel"
    two_devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"} if backend == "jax" else {}
    if backend == "jax" and cores < 4:
        # By itself the peer would hang: two devices need four threads. Trireme sees to that for its own workers.
        two_devices["NPROC"] = "4"
    plain = (sys.executable, str(SCRIPT))
    launcher = (sys.executable, "-m", "trireme", "run", "--replicas")
    workers = 1 if backend == "jax" else 2

    def command(start: tuple[str, ...], name: str, strategy: str, parts: int = 1) -> tuple[str, ...]:
        options = ("--name", name, "--strategy", strategy, "--parts", str(parts), "--address", address)
        return (*start, *options)

    pair = command(plain, "pair", "plain", parts=2)
    return [
        Contestant("plain", "plain Keras, all cores", (command(plain, "plain", "plain"),), whole, 1),
        Contestant(
            "one_replica",
            "trireme run --replicas 1",
            (command((*launcher, "1", str(SCRIPT)), "one_replica", "trireme"),),
            own,
            1,
        ),
        Contestant(
            "two_replicas",
            "trireme run --replicas 2",
            (command((*launcher, "2", str(SCRIPT)), "two_replicas", "trireme"),),
            own,
            workers,
        ),
        Contestant(
            "pair",
            "two independent plain processes at the same time, half of the cores and of the batch each",
            (pair, pair),
            half,
            2,
            ("resnet", "mlp"),
        ),
        Contestant(
            "peer",
            f"{peer} on two logical devices",
            (command(plain, "peer", "peer"),),
            {**whole, **two_devices},
            1,
            ("resnet", "mlp"),
        ),
    ]


def _environ(backend: str, threads: int) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in _SET_HERE and not name.startswith("TRIREME_")
    }
    return {
        **inherited,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **_threads(backend, threads),
    }


def _threads(backend: str, threads: int) -> dict[str, str]:
    """The settings that `trireme run` makes for a worker that has so many cores."""
    settings = {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(max(2, threads)),
    }
    return {**settings, "NPROC": str(threads)} if backend == "jax" else settings
