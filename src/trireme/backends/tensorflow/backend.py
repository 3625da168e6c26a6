"""The TensorFlow side of the contract."""

import keras
import tensorflow as tf
from keras.src import tree

from trireme.backends import batch_norm, custom_loops, step
from trireme.backends.backend import Backend
from trireme.backends.build import build_by_symbols, build_model
from trireme.backends.model_state import optimizers_of
from trireme.backends.optimizers import connect_optimizer
from trireme.backends.tensorflow import runtime
from trireme.backends.tensorflow.data import shard_adapter
from trireme.backends.tensorflow.gradients import GradientExchange
from trireme.backends.tensorflow.train_step import (
    refuse_xla,
    replace_steps,
    sharded_function,
    take_shard_iterators,
)


class TensorFlowBackend(Backend):
    """One process per device; gradients are exchanged inside the traced step."""

    name = "tensorflow"

    def __init__(self):
        super().__init__()
        self.collectives = None
        self.exchange = GradientExchange(self)
        self._num_connected = 0

    def _start_runtime(self):
        runtime.use_local_device()
        if self.cluster.num_workers == 1:
            return
        step.install()
        batch_norm.install()
        self._host, self.collectives = runtime.connect(self)

    def num_local_devices(self):
        return max(1, len(tf.config.list_physical_devices("GPU")))

    def all_reduce_in_step(self, vector):
        """Sums a float32 vector over the workers, inside the traced step."""
        return self.collectives.all_reduce([tf.stop_gradient(vector)], tf.constant(1.0))[0]

    def mean_in_step(self, tensor, share):
        """Sums `share * tensor` over the workers, inside the traced step, with its gradient (see `batch_norm`)."""

        @tf.custom_gradient
        def mean(tensor):
            [total] = self.collectives.all_reduce([tensor], share)
            return total, lambda gradient: self.mean_in_step(gradient, share)

        return mean(tensor)

    def shard(self, source):
        return shard_adapter(source, self)

    def connect(self, model):
        if getattr(model, "jit_compile", False):
            refuse_xla(model)
        if "train_step" not in vars(model):
            # The same number on every worker: the model's turn among those connected.
            self._num_connected += 1
            replace_steps(model, self, self._num_connected)
            take_shard_iterators(model)
        for optimizer in optimizers_of(model):
            connect_optimizer(optimizer, self.exchange)

    def takes_over(self, optimizer, variables):
        connect_optimizer(optimizer, self.exchange)
        if step.current_step() is None:
            with tf.init_scope():
                custom_loops.refuse_differing_weights(variables, self)
        return True

    def build(self, model, adapter, training=True):
        specs = tree.map_structure(_of_some_rows, adapter.specs())
        if any(isinstance(spec, tf.RaggedTensorSpec) for spec in tree.flatten(specs)):
            build_by_symbols(model, tree.map_structure(_symbol, specs), training)
        else:
            build_model(model, iter([specs]), training)

    def trying_once(self):
        is_done = tf.Variable(False, trainable=False)

        def try_once(trial, judge):
            def do():
                tf.numpy_function(judge, trial(), [])
                is_done.assign(True)

            is_due = tf.logical_and(tf.logical_not(is_done), step.current_step().num_local_rows > 0)
            tf.cond(is_due, do, lambda: None)

        return try_once

    def sharded_function(self, function):
        return sharded_function(function, self.cluster)

    def is_tracing(self):
        return tf.inside_function()


def _of_some_rows(spec):
    """Returns `spec` without its number of rows where this worker has none: Keras does not reduce their loss."""
    has_no_rows = isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[0] == 0
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if has_no_rows else spec


def _symbol(spec):
    if not isinstance(spec, tf.RaggedTensorSpec):
        return None if spec is None else keras.KerasTensor(spec.shape, spec.dtype.name)
    options = {"ragged_rank": spec.ragged_rank, "row_splits_dtype": spec.row_splits_dtype.name}
    return keras.KerasTensor(spec.shape, spec.dtype.name, ragged=True, **options)
