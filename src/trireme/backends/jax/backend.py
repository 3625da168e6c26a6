"""The JAX side of the contract."""

import contextlib
import dataclasses
import warnings

import jax
import keras
import numpy as np

from trireme.backends.backend import Backend
from trireme.backends.build import build_model
from trireme.backends.jax import runtime, train_step
from trireme.backends.jax.data import CommonBatches, shard_adapter
from trireme.backends.jax.distribution import Replication
from trireme.backends.model_state import broadcast_values, variables_of
from trireme.errors import ConfigurationError, UsageError


class JaxBackend(Backend):
    """One process drives all its devices; XLA puts the collectives into the compiled step."""

    name = "jax"
    sees_global_batch = True

    def __init__(self):
        super().__init__()
        self._distribution = None
        self._step_before = None

    def _start_runtime(self):
        if self.cluster.num_workers > 1:
            self.release_port()
            runtime.connect(self.cluster, self.timeout_s)
            self._host = runtime.HostCollectives(self)
        num_devices = jax.local_device_count()
        if self.cluster.replicas_per_worker not in (1, num_devices):
            raise ConfigurationError(
                f"{self.cluster!r} is to drive {self.cluster.replicas_per_worker} devices, but JAX sees {num_devices}: "
                f"{jax.local_devices()}. Ask for {num_devices} replicas per worker, or make the others visible."
            )
        # A cluster described by other tools does not tell how many devices a process has; JAX takes all of them.
        self.cluster = dataclasses.replace(self.cluster, replicas_per_worker=num_devices)

    def _stop_runtime(self):
        if self.cluster.num_workers > 1:
            runtime.disconnect()

    @property
    def distribution(self):
        """Where the arrays of this run live; made at first use, when the devices are known."""
        if self._distribution is None:
            train_step.install()
            self._distribution = Replication(sorted(jax.devices(), key=lambda d: (d.process_index, d.id)))
        return self._distribution

    def num_local_devices(self):
        return jax.local_device_count()

    def drive(self, num_devices):
        return runtime.ensure_devices(num_devices)

    def processes_for(self, num_replicas):
        return {"num_workers": 1, "replicas_per_worker": num_replicas}

    def shard(self, source):
        size, num_devices = source.adapter.batch_size, self.distribution.num_devices
        if size and size % num_devices and not source.is_own:
            warnings.warn(
                f"The batch size {size} does not divide by {num_devices} replicas, so every replica computes every "
                "batch whole: right, but no faster than one device. "
                f"Take {max(size // num_devices, 1) * num_devices} or {(size // num_devices + 1) * num_devices}.",
                stacklevel=5,
            )
        return shard_adapter(source, self)

    def connect(self, model):
        self.place_variables(model)
        if "make_train_function" not in vars(model):
            train_step.prepare_steps(model, self)
        if self.cluster.num_workers > 1 and "predict_step" not in vars(model):
            train_step.replicate_predictions(model, self.distribution)

    def place_variables(self, model):
        """Puts the variables of `model` and its optimizers on every device: the chief's values, if not there yet."""
        variables = [*variables_of(model), *model.metrics_variables]
        is_missing = np.array(
            [not self.distribution.has_placed(variable) for variable in variables], np.int32
        )
        # A process may have assigned a variable that others have not: all must take part in the exchange.
        missing = [v for v, flag in zip(variables, self.all_reduce(is_missing, "max"), strict=True) if flag]
        for variable, value in zip(missing, broadcast_values(missing, self), strict=True):
            self.distribution.place_variable(variable, value)

    def takes_over(self, optimizer, variables):
        if self.cluster.num_workers > 1 and keras.distribution.distribution() is not self.distribution:
            raise UsageError(
                f"The optimizer {optimizer.name!r} is to update a model of a strategy outside of its `fit`, "
                f"`train_on_batch` or `train_step`, on one of {self.cluster.num_workers} processes: JAX would train "
                "each process' copy by itself. Use a `train_step` of your own, or one process "
                "(`trireme run --replicas N` on one machine), where a loop of your own runs on one device."
            )
        return False

    def build(self, model, adapter, training=True):
        # One process that drives all devices reads as Keras does.
        is_shared = isinstance(adapter, CommonBatches)
        build_model(model, iter(adapter.first_batch() if is_shared else adapter.get_jax_iterator()), training)

    def begin_step(self, model, step):
        if self.cluster.num_workers > 1 and self.board is not None:
            self._wait_for_step_before_last(model)
        super().begin_step(model, step)

    def wait_for_steps(self, model):
        state = getattr(model, "_jax_state", None)
        if self.cluster.num_workers > 1 and state:
            with self.waiting():
                # Keras' lists of variables are no containers to JAX.
                jax.block_until_ready([list(arrays) for arrays in state.values()])

    def _wait_for_step_before_last(self, model):
        """Lets Python be one step ahead of the devices and no more, so that waiting for peers shows as that."""
        step_before, self._step_before = self._step_before, None
        if step_before is not None and not step_before.is_ready():
            with self.waiting():
                step_before.block_until_ready()
        # Where `predict_on_batch` came before, what it left has none.
        updated = (getattr(model, "_jax_state", None) or {}).get("optimizer_variables")
        if updated:
            # A copy, because the next step takes over the state's own memory.
            self._step_before = updated[0].addressable_data(0) + 0

    @contextlib.contextmanager
    def alone(self):
        # Every device computes every batch whole, which is what one device does.
        with super().alone(), self.distribution.scope(), self.distribution.without_spreading():
            yield

    @contextlib.contextmanager
    def calling(self, model):
        with self.distribution.scope():
            yield
