"""The only file that knows the steps of Keras' PyTorch trainer.

`train_step`, `test_step` and `predict_step` are replaced on the model instance. Each takes a `Shard` from our
data adapter, tells the seams how many rows the global batch has, and calls the model's own step with this
worker's rows.
"""

import contextlib
import functools
import typing

import keras
import numpy as np
import torch
from keras.src import tree

from trireme.backends.model_state import layer_state
from trireme.backends.step import Step, running
from trireme.backends.torch.collectives import accumulation_dtype
from trireme.data import rows_of
from trireme.errors import UnsupportedInput

# From this version on Keras exchanges gradients and metrics by itself wherever PyTorch has a default process group.
_KERAS_EXCHANGES_SINCE = (3, 16)
_IS_OURS = "_trireme_exchanges"


class Shard(typing.NamedTuple):
    """What one worker gets of a global batch.

    A worker without rows gets the first row of the batch to compute with, and counts nothing of it: many
    operations refuse empty tensors.
    """

    num_rows: int
    num_local_rows: int
    data: object


def rows_to_take(num_rows, rank, num_workers):
    """Returns `(start, stop, num_local_rows)`: the rows to compute with, and how many of them count."""
    start, stop = rows_of(num_rows, rank, num_workers)
    return (start, stop, stop - start) if stop > start else (0, min(1, num_rows), 0)


def take_rows(batch, rank, num_workers):
    """Returns worker `rank`'s `Shard` of the structure of arrays or tensors `batch`.

    Raises:
        UnsupportedInput: something in it has no rows.
    """
    leaves = [leaf for leaf in tree.flatten(batch) if leaf is not None]
    for leaf in leaves:
        if len(leaf.shape) == 0:
            raise UnsupportedInput(
                f"The input yields a scalar ({leaf!r}): it has no rows to share out. "
                "Batch it, with the global batch size: `dataset.batch(batch_size)`."
            )
    num_rows = leaves[0].shape[0]
    start, stop, num_local_rows = rows_to_take(num_rows, rank, num_workers)
    rows = tree.map_structure(lambda leaf: None if leaf is None else leaf[start:stop], batch)
    return Shard(num_rows, num_local_rows, rows)


def sharded_function(function, cluster):
    """Returns one of Keras' loops, taking a list of global batches where `function` takes `Shard`s."""

    def call(batches):
        return function([take_rows(batch, cluster.rank, cluster.num_workers) for batch in batches])

    return call


def replace_steps(model, backend):
    """Makes the three steps of `model` take a `Shard` and exchange what workers must share."""
    originals = {name: getattr(model, name) for name in ("train_step", "test_step", "predict_step")}
    history = []

    def step_of(shard):
        all_reduce = functools.partial(backend.all_reduce_in_step, has_rows=shard.num_local_rows > 0)
        # Tensors, since to a compiler a number is a constant, and it would compile each number's step anew.
        num_rows, num_local_rows = (keras.ops.convert_to_tensor(number) for number in shard[:2])
        return running(Step(num_rows, num_local_rows, all_reduce))

    @_around_compiled
    def train_step(data):
        if not isinstance(data, Shard):
            return originals["train_step"](data)
        with step_of(data), _counting(model, data):
            state, before = _layer_state_now(model)
            share = data.num_local_rows / max(data.num_rows, 1)
            with backend.exchange.step(history, share):
                logs = originals["train_step"](data.data)
            _exchange_state(state, before, share, backend.collectives)
        return logs

    @_around_compiled
    def test_step(data):
        if not isinstance(data, Shard):
            return originals["test_step"](data)
        with step_of(data), _counting(model, data):
            return originals["test_step"](data.data)

    @_around_compiled
    def predict_step(data):
        if not isinstance(data, Shard):
            return originals["predict_step"](data)
        with step_of(data):
            outputs = originals["predict_step"](data.data)
        if data.num_local_rows == 0:
            outputs = tree.map_structure(lambda output: output[:0], outputs)
        return tree.map_structure(backend.gather_rows, outputs)

    for step in (train_step, test_step, predict_step):
        object.__setattr__(model, step.__name__, step)
    object.__setattr__(model, _IS_OURS, True)
    for function in ("train_function", "test_function", "predict_function"):
        # A function made before would go on with the steps it was made with.
        setattr(model, function, None)


def replace_apply(optimizer, exchange):
    """Makes `optimizer.apply` take this worker's gradients and apply their mean over the global batch.

    Before clipping, accumulation, averaging and loss-scale checks, which all come after `apply` begins.
    """
    original = optimizer.apply
    plans = {}

    @_around_compiled
    def apply(grads, trainable_variables=None):
        grads = list(grads)
        variables = (
            optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
        )
        if len(grads) == len(variables):
            key = tuple(id(variable.value) for variable in variables)
            if key not in plans:
                # The plan holds the variables' tensors, so that no identity is used again meanwhile.
                plans[key] = exchange.plan(variables)
            with torch.no_grad():
                grads = exchange.mean(grads, plans[key])
        return original(grads, trainable_variables)

    object.__setattr__(optimizer, "apply", apply)


@functools.cache
def keep_keras_from_exchanging():
    """Makes Keras leave the gradients and metrics of models with replaced steps to us. Before any model is made.

    A script may make PyTorch's default process group for purposes of its own. From 3.16 on, Keras would take that as
    the order to sum over the workers what is summed over them already.
    """
    if keras_version() < _KERAS_EXCHANGES_SINCE:
        return
    trainer = next(base for base in keras.Model.__mro__ if base.__module__.endswith("backend.torch.trainer"))
    trainer._initialize_ddp = _unless_ours(trainer._initialize_ddp, lambda model: None)
    trainer.get_metrics_result = _unless_ours(
        trainer.get_metrics_result, lambda model: super(trainer, model).get_metrics_result()
    )


def keras_version():
    """Returns the version of Keras as `(major, minor)`."""
    major, minor, *_ = keras.__version__.split(".")
    return int(major), int(minor)


def _unless_ours(original, for_ours):
    @functools.wraps(original)
    def method(self):
        return for_ours(self) if getattr(self, _IS_OURS, False) else original(self)

    return method


def _around_compiled(function):
    # With `jit_compile=True` Keras compiles the steps. These run as they are, what they call may be compiled.
    return torch.compiler.disable(function, recursive=False)


@contextlib.contextmanager
def _counting(model, shard):
    """Lets a step update the metrics of `model`, but not by the row that a worker without rows computes with."""
    if shard.num_local_rows > 0:
        yield
        return
    variables = model.metrics_variables
    before = [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


@torch.compiler.disable
def _layer_state_now(model):
    """Returns the float tensors that layers update by themselves in a step (see `layer_state`), and copies of them."""
    state = [variable.value for variable in layer_state(model)]
    # Keras wraps every PyTorch module that a layer holds. The module's buffers are no Keras variables.
    wrappers = [
        layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.TorchModuleWrapper)
    ]
    buffers = {id(buffer): buffer for wrapper in wrappers for buffer in wrapper.buffers()}
    state += [buffer for buffer in buffers.values() if buffer.is_floating_point()]
    return state, [tensor.detach().clone() for tensor in state]


@torch.compiler.disable
def _exchange_state(state, before, share, collectives):
    """Adds to each tensor the mean, over the rows, of what the workers' steps changed in it.

    Changes are exchanged, not values: what no step changes keeps its bits for ever.
    """
    with torch.no_grad():
        changes = [tensor.detach() - old for tensor, old in zip(state, before, strict=True)]
        for dtype in {accumulation_dtype(change.dtype) for change in changes}:
            chosen = [
                index for index, change in enumerate(changes) if accumulation_dtype(change.dtype) == dtype
            ]
            tensors = [changes[index] for index in chosen]
            total = torch.empty(sum(t.numel() for t in tensors), dtype=dtype, device=tensors[0].device)
            collectives.finish(collectives.start_sum(tensors, total, share))
            parts = total.split([t.numel() for t in tensors])
            for index, part in zip(chosen, parts, strict=True):
                state[index].copy_(before[index] + part.view(before[index].shape))
