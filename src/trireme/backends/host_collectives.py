"""Collectives on NumPy arrays, for frameworks whose runtime offers a gather and little else for them."""

import abc

import numpy as np


class GatheringCollectives(abc.ABC):
    """The counterpart of `SharedMemoryGroup` where all there is is `all_gather`.

    These serve decisions, metrics and initial values: seldom, or a few numbers.
    """

    @abc.abstractmethod
    def all_gather(self, array):
        """See `SharedMemoryGroup.all_gather`."""

    def all_reduce(self, array, op="sum"):
        """See `SharedMemoryGroup.all_reduce`."""
        rows = np.stack(self.all_gather(array[np.newaxis]))
        return {"sum": np.sum, "max": np.max}[op](rows, axis=0)[0].astype(array.dtype)

    def broadcast(self, array):
        """See `SharedMemoryGroup.broadcast`."""
        as_bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        mine = as_bytes if self.is_chief else as_bytes[:0]
        return self.all_gather(mine)[0].view(array.dtype).reshape(array.shape)

    @property
    @abc.abstractmethod
    def is_chief(self):
        """Whether this is worker 0, whose array is broadcast."""
