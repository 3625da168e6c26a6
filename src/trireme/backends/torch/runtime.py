"""Starts PyTorch in a worker: its device, and its connection to the other workers.

The process groups made here are nobody else's: PyTorch's default group stays free. A script may make one of its
own, and Keras, which from 3.16 on wraps models in `DistributedDataParallel` and adds up metrics wherever there
is a default group, has no reason to.
"""

import contextlib
import datetime

import torch
import torch.distributed

from trireme.backends.torch.collectives import (
    HostCollectives,
    ProcessGroupCollectives,
    SharedMemoryCollectives,
)
from trireme.backends.transport import join_group
from trireme.cluster.addresses import UNKNOWN, host_of, port_of
from trireme.errors import ConfigurationError, PeerTimeout


def has_gpu():
    """Returns whether this worker trains on a GPU."""
    return torch.cuda.is_available()


def use_local_device(cluster):
    """Makes one GPU the current one of this process, which is what Keras' device "cuda" means."""
    if has_gpu():
        # Workers that a launcher gave one visible GPU each have only device 0.
        torch.cuda.set_device(cluster.local_rank % torch.cuda.device_count())


def connect(backend):
    """Returns `(host collectives, device collectives)` among the workers of the backend's cluster.

    Raises:
        ConfigurationError: worker 0 has no address to meet at.
        PeerTimeout: not all workers were there in time.
    """
    group = join_group(backend, on_cpu=not has_gpu())
    if group is not None:
        return group, SharedMemoryCollectives(group)
    store = _meet(backend)
    with _told_as_timeout(backend):
        # Two groups, since sums that run aside must not come between the host's collectives.
        host = HostCollectives(_gloo("host", store, backend), backend)
        group = _nccl(store, backend) if has_gpu() else _gloo("device", store, backend)
        return host, ProcessGroupCollectives(group, backend)


def _meet(backend):
    """Returns the store by which the workers find each other; worker 0 serves it."""
    cluster = backend.cluster
    if port_of(cluster.coordinator) == 0:
        raise ConfigurationError(
            f"Worker 0 of {cluster!r} has no port, and PyTorch's processes meet there. "
            "Start the workers with `trireme run`, or give worker 0 an address such as host:29500."
        )
    backend.release_port()
    with _told_as_timeout(backend):
        return torch.distributed.TCPStore(
            _host(cluster.coordinator),
            port_of(cluster.coordinator),
            cluster.num_workers,
            is_master=cluster.is_chief,
            timeout=datetime.timedelta(seconds=backend.timeout_s),
        )


def _gloo(name, store, backend):
    cluster = backend.cluster
    options = torch.distributed.ProcessGroupGloo._Options()
    options._timeout = datetime.timedelta(seconds=backend.timeout_s)
    options._devices = [_network_device(cluster)]
    return torch.distributed.ProcessGroupGloo(
        torch.distributed.PrefixStore(name, store), cluster.rank, cluster.num_workers, options
    )


def _network_device(cluster):
    """Returns the network interface that Gloo listens on: the one by which the others know this worker."""
    create = torch.distributed.ProcessGroupGloo.create_device
    if cluster.is_single_machine:
        return create(hostname="127.0.0.1")
    address = cluster.workers[cluster.rank]
    if address != UNKNOWN:
        return create(hostname=_host(address))
    return torch.distributed.ProcessGroupGloo.create_default_device()


def _host(address):
    return host_of(address).strip("[]")


def _nccl(store, backend):
    options = torch.distributed.ProcessGroupNCCL.Options()
    options._timeout = datetime.timedelta(seconds=backend.timeout_s)
    return torch.distributed.ProcessGroupNCCL(
        torch.distributed.PrefixStore("device", store),
        backend.cluster.rank,
        backend.cluster.num_workers,
        options,
    )


@contextlib.contextmanager
def _told_as_timeout(backend):
    backend.report_waiting(True)
    try:
        yield
    except (torch.distributed.DistError, RuntimeError) as error:
        cluster = backend.cluster
        raise PeerTimeout(
            f"Worker {cluster.rank} could not connect to the other workers of {cluster!r} by way of "
            f"{cluster.coordinator} within {backend.timeout_s:.0f} s. Each of them must be running and able to reach "
            f"that address. PyTorch says: {error}"
        ) from error
    finally:
        backend.report_waiting(False)
