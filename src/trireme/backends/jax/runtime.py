"""Starts JAX in a process of several, and makes CPUs look like several devices."""

import os

import jax
import numpy as np
from jax._src import xla_bridge
from jax.experimental import multihost_utils

from trireme.backends.host_collectives import GatheringCollectives
from trireme.cluster.machine import num_cpu_cores, num_local_devices, num_virtual_devices
from trireme.errors import ConfigurationError

_POOL_SIZE = "NPROC"


def enlarge_pool(num_devices):
    """Makes XLA's thread pool large enough for `num_devices` virtual CPU devices; call before JAX runs anything.

    The pool has a thread for each core. For each device, launching a program may hold one thread (until earlier
    programs are through) and running a program another one (until the other devices reach the same collective). With
    fewer than two threads for each device all of them can end up waiting for a program that gets none.
    """
    size = int(os.environ.get(_POOL_SIZE) or num_cpu_cores())
    if num_devices > 1 and size < 2 * num_devices:
        os.environ[_POOL_SIZE] = str(2 * num_devices)


# Asking JAX for its devices starts its pool, so this comes first.
enlarge_pool(num_virtual_devices(os.environ))


def connect(cluster, timeout_s):
    """Joins this process to the others of `cluster`."""
    address = cluster.coordinator
    if address.endswith(":0") or ":" not in address:
        raise ConfigurationError(
            f"Worker 0 of {cluster!r} has no port, and JAX's processes meet there. "
            "Start the workers with `trireme run`, or give worker 0 an address such as host:29500."
        )
    # Gloo is the only CPU transport that works between processes; GPUs and TPUs ignore the setting.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator_address=address,
        num_processes=cluster.num_workers,
        process_id=cluster.rank,
        cluster_detection_method="deactivate",
        initialization_timeout=int(timeout_s),
    )


def disconnect():
    """Leaves the other processes."""
    jax.distributed.shutdown()


def ensure_devices(num_devices):
    """Returns whether this process has `num_devices` devices, making virtual CPU devices while that is possible.

    It is possible until JAX has run anything.
    """
    on_cpu = num_local_devices("jax", os.environ) == 1
    if on_cpu and not xla_bridge.backends_are_initialized():
        enlarge_pool(num_devices)
        jax.config.update("jax_num_cpu_devices", num_devices)
    return len(jax.devices()) == num_devices


class HostCollectives(GatheringCollectives):
    """Collectives on NumPy arrays among the processes of `jax.distributed`."""

    def __init__(self, backend):
        self._backend = backend

    @property
    def is_chief(self):
        return self._backend.cluster.is_chief

    def all_gather(self, array):
        with self._backend.waiting():
            as_bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            sizes = multihost_utils.process_allgather(np.array([len(as_bytes)], np.int32)).reshape(-1)
            # JAX gathers equal shapes, and without x64 mode it would halve wide numbers: bytes travel as they are.
            filled = np.zeros(max(int(sizes.max()), 1), np.uint8)
            filled[: len(as_bytes)] = as_bytes
            rows = np.asarray(multihost_utils.process_allgather(filled)).reshape(len(sizes), -1)
        return [
            row[:size].copy().view(array.dtype).reshape(-1, *array.shape[1:])
            for row, size in zip(rows, sizes, strict=True)
        ]
