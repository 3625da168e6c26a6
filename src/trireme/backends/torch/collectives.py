"""Sums and gathers among workers.

Two ways to move the bytes:

- `SharedMemoryCollectives`: CPU workers of one machine, through memory they share;
- `ProcessGroupCollectives` and `HostCollectives`: everything else, by PyTorch's own process groups (NCCL between
  GPUs, Gloo between CPUs).
"""

import contextlib

import numpy as np
import torch

from trireme.backends.buckets import BUCKET_BYTES
from trireme.errors import PeerLost, PeerTimeout


class SharedMemoryCollectives:
    """Sums of tensors through a `SharedMemoryGroup`."""

    # Whether sums go on while this process computes. Here they take the same cores, so an early start gains nothing.
    runs_aside = False
    first_bucket_bytes = BUCKET_BYTES

    def __init__(self, group):
        self._group = group

    def start_sum(self, tensors, total, weight):
        """Begins `total = sum over workers of weight * tensors`, the tensors one after the other.

        Every worker must begin the same sums in the same order.

        Args:
            tensors: dense tensors of any shapes.
            total: a vector as long as all of them together, of the dtype to add in; gets the sum.
            weight: this worker's factor, a float. 0 means that it adds nothing, whatever its tensors hold.

        Returns:
            What `finish` takes.
        """
        result = total.cpu().numpy()
        sources = [_plain(tensor, total.dtype).cpu().reshape(-1).numpy() for tensor in tensors]
        ends = np.cumsum([source.size for source in sources])
        self._group.reduce_into(sources, np.split(result, ends[:-1]), result.dtype, weight)
        if total.device.type != "cpu":
            total.copy_(torch.from_numpy(result))

    def finish(self, sum_in_progress):
        """Returns when the sum has arrived in its `total`."""


class ProcessGroupCollectives:
    """Sums of tensors by a process group, which moves them while this process goes on computing."""

    runs_aside = True
    # Small, so that the exchange starts soon after the backward pass does.
    first_bucket_bytes = 1 << 20

    def __init__(self, group, backend):
        self._group = group
        self._backend = backend

    def start_sum(self, tensors, total, weight):
        """See `SharedMemoryCollectives.start_sum`."""
        if weight == 0:
            # NaN times 0 is NaN, and a worker without rows may have NaN gradients.
            total.zero_()
        else:
            parts = total.split([tensor.numel() for tensor in tensors])
            torch._foreach_copy_(parts, [_plain(tensor, total.dtype).reshape(-1) for tensor in tensors])
            total.mul_(weight)
        with _told_as_lost(self._backend):
            return self._group.allreduce([total])

    def finish(self, sum_in_progress):
        """See `SharedMemoryCollectives.finish`."""
        _wait(sum_in_progress, self._backend)

    def close(self):
        """Leaves the other workers."""
        self._group.shutdown()


class HostCollectives:
    """Collectives on NumPy arrays by Gloo; the counterpart of `SharedMemoryGroup`."""

    def __init__(self, group, backend):
        self._group = group
        self._backend = backend

    def all_reduce(self, array, op="sum"):
        """See `SharedMemoryGroup.all_reduce`."""
        operation = {"sum": torch.distributed.ReduceOp.SUM, "max": torch.distributed.ReduceOp.MAX}[op]
        result = torch.from_numpy(np.array(array))
        self._run(lambda: self._group.allreduce([result], operation))
        return result.numpy()

    def all_gather(self, array):
        """See `SharedMemoryGroup.all_gather`."""
        array = np.ascontiguousarray(array)
        mine = array.reshape(-1).view(np.uint8)
        sizes = self._gather_equal(np.array([mine.size], np.int64))
        # Gloo gathers equal sizes only: fill up to the longest, and drop the filling afterwards.
        filled = np.zeros(max(int(max(sizes)[0]), 1), np.uint8)
        filled[: mine.size] = mine
        parts = self._gather_equal(filled)
        return [
            part[: size[0]].view(array.dtype).reshape(-1, *array.shape[1:])
            for part, size in zip(parts, sizes, strict=True)
        ]

    def broadcast(self, array):
        """See `SharedMemoryGroup.broadcast`."""
        shape = np.shape(array)
        array = np.ascontiguousarray(array)
        received = torch.from_numpy(array.reshape(-1).view(np.uint8).copy())
        self._run(lambda: self._group.broadcast([received]))
        return received.numpy().view(array.dtype).reshape(shape)

    def close(self):
        """Leaves the other workers."""
        self._group.shutdown()

    def _gather_equal(self, array):
        parts = [torch.empty_like(torch.from_numpy(array)) for _ in range(self._group.size())]
        self._run(lambda: self._group.allgather([parts], [torch.from_numpy(array)]))
        return [part.numpy() for part in parts]

    def _run(self, start):
        with _told_as_lost(self._backend):
            work = start()
        _wait(work, self._backend)


def gather_rows(tensor, host):
    """Returns every worker's `tensor`, one after the other in rank order along the first dimension, on the CPU.

    Args:
        tensor: a tensor with at least one dimension; the first may differ between workers.
        host: the collectives on NumPy arrays.
    """
    rows = tensor.detach().cpu().contiguous()
    as_bytes = (rows.flatten(1) if rows.ndim > 1 else rows[:, None]).view(torch.uint8)
    gathered = torch.from_numpy(np.concatenate(host.all_gather(as_bytes.numpy())))
    return gathered.view(tensor.dtype).reshape(len(gathered), *tensor.shape[1:])


def accumulation_dtype(dtype):
    """Returns the dtype in which values of `dtype` are summed: half precision is summed as float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _plain(tensor, dtype):
    """Returns a dense tensor of `dtype` outside of any graph."""
    tensor = tensor.detach()
    return (tensor.to_dense() if tensor.layout != torch.strided else tensor).to(dtype)


def _wait(work, backend):
    with _told_as_lost(backend):
        if work.is_completed():
            work.wait()
            return
        backend.report_waiting(True)
        work.wait()
        backend.report_waiting(False)


@contextlib.contextmanager
def _told_as_lost(backend):
    try:
        yield
    except RuntimeError as error:
        rank, num_workers = backend.cluster.rank, backend.cluster.num_workers
        if "timed out" in str(error).lower():
            raise PeerTimeout(
                f"Worker {rank} waited {backend.timeout_s:.0f} s in a collective for one of the {num_workers - 1} "
                "others. A worker is stuck, or the workers do not run the same steps. If steps really take that "
                f"long, raise the limit: `trireme run --timeout SECONDS`. PyTorch says: {error}"
            ) from error
        raise PeerLost(
            f"Worker {rank} of {num_workers} lost another worker during a collective. PyTorch says: {error}"
        ) from error
