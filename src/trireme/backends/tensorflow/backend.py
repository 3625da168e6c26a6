"""The TensorFlow side of the contract."""

import tensorflow as tf

from trireme.backends import step
from trireme.backends.backend import Backend
from trireme.backends.build import build_model
from trireme.backends.model_state import optimizers_of
from trireme.backends.tensorflow import runtime
from trireme.backends.tensorflow.data import shard_adapter
from trireme.backends.tensorflow.train_step import refuse_xla, replace_apply, replace_steps, sharded_function


class TensorFlowBackend(Backend):
    """One process per device; gradients are exchanged inside the traced step."""

    name = "tensorflow"

    def __init__(self):
        super().__init__()
        self.collectives = None
        self._num_connected = 0

    def _start_runtime(self):
        runtime.use_local_device()
        if self.cluster.num_workers == 1:
            return
        step.install()
        self._host, self.collectives = runtime.connect(self)

    def num_local_devices(self):
        return max(1, len(tf.config.list_physical_devices("GPU")))

    def all_reduce_in_step(self, vector):
        """Sums a float32 vector over the workers, inside the traced step."""
        return self.collectives.all_reduce([tf.stop_gradient(vector)], tf.constant(1.0))[0]

    def shard(self, adapter):
        return shard_adapter(adapter, self)

    def connect(self, model):
        if getattr(model, "jit_compile", False):
            refuse_xla(model)
        if "train_step" not in vars(model):
            # The same number on every worker: the model's turn among those connected.
            self._num_connected += 1
            replace_steps(model, self, self._num_connected)
        for optimizer in optimizers_of(model):
            if "apply" not in vars(optimizer):
                replace_apply(optimizer, self)

    def build(self, model, adapter, training=True):
        build_model(model, iter([adapter.get_tf_dataset().element_spec.data]), training)

    def sharded_function(self, function):
        return sharded_function(function, self.cluster)

    def is_tracing(self):
        return tf.inside_function()
