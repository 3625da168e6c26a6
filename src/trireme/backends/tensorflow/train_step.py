"""The only file that knows the steps of Keras' TensorFlow trainer.

`train_step`, `test_step` and `predict_step` are replaced on the model instance. Each takes a `Shard` from our
data adapter, tells the seams how many rows the global batch has, and calls the model's own step with this
worker's rows.
"""

import functools
import itertools
import typing

import tensorflow as tf
from keras.src import tree

from trireme.backends.adoption import syncs_batch_norm
from trireme.backends.metrics import means_of
from trireme.backends.model_state import layer_state, optimizers_of
from trireme.backends.step import Step, running
from trireme.backends.tf_data import rows_of_sparse
from trireme.data import rows_of
from trireme.errors import UsageError


class Shard(typing.NamedTuple):
    """What one worker gets of a global batch: the number of all its rows, and the worker's own rows."""

    num_rows: tf.Tensor
    data: object


class ShardIterator:
    """An iterator over `Shard`s that Python reads, since the workers meet for each of them.

    Args:
        shards: the iterator.
        spec: the `Shard` of specs that all of them match.
    """

    def __init__(self, shards, spec):
        self._shards = shards
        self.spec = spec

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._shards)


def take_rows(batch, rank, num_workers):
    """Returns worker `rank`'s `Shard` of the structure of tensors `batch`."""
    num_rows = num_rows_of(batch)
    start, stop = rows_of(num_rows, rank, num_workers)
    return Shard(tf.cast(num_rows, tf.int32), _rows(batch, start, stop))


def no_rows_of(batch):
    """Returns a structure of tensors like `batch`, without its rows."""
    return _rows(batch, 0, 0)


def _rows(batch, start, stop):
    def rows(leaf):
        if leaf is None or isinstance(leaf, tf.experimental.Optional):
            return leaf
        return rows_of_sparse(leaf, start, stop) if isinstance(leaf, tf.SparseTensor) else leaf[start:stop]

    return tree.map_structure(rows, batch)


def num_rows_of(batch):
    """Returns the rows of a structure of tensors: an integer where they are known, else a scalar tensor."""
    leaves = (leaf for leaf in tree.flatten(batch) if leaf is not None)
    leaf = next(leaf for leaf in leaves if not isinstance(leaf, tf.experimental.Optional))
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows()
    return tf.shape(leaf)[0] if leaf.shape[0] is None else leaf.shape[0]


def take_shard_iterators(model):
    """Makes the training and test functions of `model` take a `ShardIterator` where Keras passes its dataset's one."""
    for name in ("train_function", "test_function"):
        make = f"make_{name}"
        object.__setattr__(model, make, _then_taking_iterators(getattr(model, make), model, name))


def _then_taking_iterators(original, model, name):
    @functools.wraps(original)
    def make_function(force=False):
        before = getattr(model, name)
        result = original(force)
        function = getattr(model, name)
        if function is not before:
            setattr(model, name, _taking_iterators(function, model))
        return result

    return make_function


def _taking_iterators(function, model):
    def one_after_the_other(*shards):
        return function(iter(shards))

    @functools.cache
    def traced(num_shards, name_of_spec):
        # With the spec of the dataset, so that batches of all sizes are one trace.
        return tf.function(
            one_after_the_other, input_signature=[specs[name_of_spec]] * num_shards, autograph=False
        )

    specs = {}

    def call(iterator):
        if not isinstance(iterator, ShardIterator):
            return function(iterator)
        shards = list(itertools.islice(iterator, model.steps_per_execution))
        if not shards:
            # As Keras' own function tells the end of a dataset.
            raise StopIteration
        if model.run_eagerly:
            return one_after_the_other(*shards)
        specs[repr(iterator.spec)] = iterator.spec
        return traced(len(shards), repr(iterator.spec))(*shards)

    return call


def refuse_xla(model):
    """Turns XLA off for a model whose steps exchange gradients, as Keras does under `tf.distribute`.

    Raises:
        UsageError: on a CPU, where Keras leaves XLA off by itself, so that the user must have asked for it.
    """
    if not tf.config.list_physical_devices("GPU"):
        raise UsageError(
            "The model is compiled with jit_compile=True, but on CPUs XLA cannot compile the exchange of gradients "
            "between workers. Leave jit_compile out, use one replica, or the JAX backend, which always compiles."
        )
    model.jit_compile = False


def sharded_function(function, cluster):
    """Returns one of Keras' compiled loops, taking global batches where `function` takes `Shard`s."""

    def call(batches):
        if isinstance(batches, list):
            return function([take_rows(batch, cluster.rank, cluster.num_workers) for batch in batches])
        return function(take_rows(batch, cluster.rank, cluster.num_workers) for batch in batches)

    return call


def replace_steps(model, backend, number):
    """Makes the three steps of `model` take a `Shard` and exchange what workers must share.

    Args:
        model: a `keras.Model`.
        backend: the TensorFlow backend.
        number: names this model among the connected ones, the same on every worker.
    """
    originals = {name: getattr(model, name) for name in ("train_step", "test_step", "predict_step")}

    def step_of(shard, name):
        backend.collectives.start_step(f"{name} of model {number}")
        num_local_rows = tf.cast(num_rows_of(shard.data), tf.int32)
        step = Step(shard.num_rows, num_local_rows, backend.all_reduce_in_step)
        step.mean_over_rows = functools.partial(backend.mean_in_step, share=step.share)
        step.syncs_batch_norm = syncs_batch_norm(model)
        return running(step)

    def train_step(data):
        if not isinstance(data, Shard):
            return originals["train_step"](data)
        with step_of(data, "train_step") as step:
            state = layer_state(model) + means_of(model)
            before = [tf.identity(variable.value) for variable in state]
            logs = originals["train_step"](data.data)
            with tf.control_dependencies(_read_after_updates(model)):
                _exchange_state(state, before, step, backend.collectives)
        return logs

    def test_step(data):
        if not isinstance(data, Shard):
            return originals["test_step"](data)
        with step_of(data, "test_step") as step:
            state = means_of(model)
            before = [tf.identity(variable.value) for variable in state]
            logs = originals["test_step"](data.data)
            _exchange_state(state, before, step, backend.collectives)
        return logs

    def predict_step(data):
        if not isinstance(data, Shard):
            return originals["predict_step"](data)
        with step_of(data, "predict_step"):
            outputs = originals["predict_step"](data.data)
            return tree.map_structure(backend.collectives.all_gather, outputs)

    for step in (train_step, test_step, predict_step):
        object.__setattr__(model, step.__name__, step)
    for function in ("train_function", "test_function", "predict_function"):
        # A function traced before would go on with the steps it was traced with.
        setattr(model, function, None)


def _read_after_updates(model):
    """Returns tensors that exist when the accumulating optimizers of `model` have done their part of a step.

    They exchange in one branch of a conditional, and TensorFlow orders what that does by the variables alone.
    """
    optimizers = [getattr(optimizer, "inner_optimizer", optimizer) for optimizer in optimizers_of(model)]
    accumulators = [
        next(variable for variable in optimizer._accumulated_gradients if variable is not None)
        for optimizer in optimizers
        if optimizer.gradient_accumulation_steps and optimizer.built
    ]
    return [tf.identity(variable.value) for variable in accumulators]


def _exchange_state(state, before, step, collectives):
    """Adds to each variable the mean, over the rows, of what the workers' steps changed in it.

    Changes are exchanged, not values: what no step changes keeps its bits for ever.
    """
    if not state:
        return
    changes = [variable.value - old for variable, old in zip(state, before, strict=True)]
    # Integers are averaged as floats, or each worker's part of them would be nothing.
    changes = [step.or_zero(tf.cast(c, tf.float32) if c.dtype.is_integer else c) for c in changes]
    for dtype in sorted({change.dtype for change in changes}, key=str):
        chosen = [index for index, change in enumerate(changes) if change.dtype == dtype]
        sums = collectives.all_reduce([changes[index] for index in chosen], step.share)
        for index, total in zip(chosen, sums, strict=True):
            total = tf.round(total) if before[index].dtype.is_integer else total
            state[index].assign(before[index] + tf.cast(total, before[index].dtype))
