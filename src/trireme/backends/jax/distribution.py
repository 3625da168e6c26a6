"""Where JAX arrays live: variables on every device, the rows of a batch spread over the devices."""

import contextlib

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from keras.src import tree
from keras.src.distribution.distribution_lib import Distribution

_BATCH = "batch"


class Replication(Distribution):
    """A copy of each variable on every device of the run; each device takes its rows of a batch.

    A batch that does not divide by the number of devices goes to every device whole: all of them compute the same,
    which is exact, and no faster than one device for that batch.

    Args:
        devices: JAX devices of all processes, in rank order.
    """

    def __init__(self, devices):
        names = [f"{device.platform}:{device.id}" for device in devices]
        mesh = keras.distribution.DeviceMesh((len(devices),), [_BATCH], names)
        super().__init__(mesh, batch_dim_name=_BATCH, auto_shard_dataset=False)
        self.num_devices = len(devices)
        self._spreads = True
        jax_mesh = mesh.backend_mesh
        self.replicated = NamedSharding(jax_mesh, PartitionSpec())
        self.by_rows = NamedSharding(jax_mesh, PartitionSpec(_BATCH))

    @property
    def num_model_replicas(self):
        return self.num_devices

    def get_data_layout(self, data_shape):
        return keras.distribution.TensorLayout([_BATCH] + [None] * (len(data_shape) - 1), self.device_mesh)

    def get_variable_layout(self, variable):
        return keras.distribution.TensorLayout([None] * len(variable.shape), self.device_mesh)

    def get_tensor_layout(self, path):
        return None

    def divides(self, num_rows):
        """Whether the rows of a batch can be spread evenly over the devices."""
        return self._spreads and num_rows % self.num_devices == 0 and num_rows > 0

    @contextlib.contextmanager
    def without_spreading(self):
        """Gives every device whole batches meanwhile."""
        self._spreads = False
        try:
            yield
        finally:
            self._spreads = True

    def place_batch(self, batch):
        """Returns the global host batch `batch`, equal on every process, as arrays on the devices."""
        return tree.map_structure(self._place, batch)

    def _place(self, leaf):
        if leaf is None or self._is_placed(leaf):
            return leaf
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            leaf = np.asarray(leaf)
        if isinstance(leaf, jax.experimental.sparse.JAXSparse):
            return leaf
        sharding = self.by_rows if leaf.ndim and self.divides(leaf.shape[0]) else self.replicated
        return self.array_of_rows(leaf.shape, sharding, lambda index: leaf[index])

    def array_of_rows(self, shape, sharding, rows):
        """Returns the array of `shape` whose parts are made by `rows(index)`, each only where it lives."""
        if jax.process_count() == 1:
            return jax.device_put(rows(...), sharding)
        return jax.make_array_from_callback(tuple(shape), sharding, rows)

    def _is_placed(self, leaf):
        return isinstance(leaf, jax.Array) and leaf.sharding in (self.replicated, self.by_rows)

    def place_variable(self, variable, value):
        """Gives `variable` the host array `value` on every device, from now on and after every assignment."""
        variable._layout = self.get_variable_layout(variable)
        variable._direct_assign(value)

    def has_placed(self, variable):
        """Whether `variable` lives on every device."""
        value = variable._value
        return value is None or (isinstance(value, jax.Array) and value.sharding == self.replicated)
