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

from trireme.backends.adoption import syncs_batch_norm
from trireme.backends.metrics import means_of
from trireme.backends.model_state import layer_state
from trireme.backends.step import Step, running
from trireme.backends.torch.collectives import accumulation_dtype
from trireme.backends.torch.gradients import around_compiled
from trireme.data import rows_of
from trireme.errors import UnsupportedInput, UsageError

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


def refuse_wrapped_batch_norm(model):
    """Refuses what `sync_batch_norm=True` cannot do.

    Raises:
        UsageError: a PyTorch module in the model has a batch normalization of its own.
    """
    for wrapper in _wrappers(model):
        for name, module in wrapper.named_modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                raise UsageError(
                    f"The layer {wrapper.name!r} wraps PyTorch's {type(module).__name__} ({name}), whose statistics "
                    "sync_batch_norm=True cannot take over all replicas. Use keras.layers.BatchNormalization, or leave "
                    "sync_batch_norm out: then each replica normalises by its own rows."
                )


def replace_steps(model, backend):
    """Makes the three steps of `model` take a `Shard` and exchange what workers must share."""
    originals = {name: getattr(model, name) for name in ("train_step", "test_step", "predict_step")}
    history = []

    def step_of(shard):
        all_reduce = functools.partial(backend.all_reduce_in_step, has_rows=shard.num_local_rows > 0)
        # Tensors, since to a compiler a number is a constant, and it would compile each number's step anew.
        num_rows, num_local_rows = (keras.ops.convert_to_tensor(number) for number in shard[:2])
        step = Step(num_rows, num_local_rows, all_reduce)
        step.mean_over_rows = functools.partial(backend.mean_in_step, share=_share_of(shard))
        step.syncs_batch_norm = syncs_batch_norm(model)
        return running(step)

    @around_compiled
    def train_step(data):
        if not isinstance(data, Shard):
            return originals["train_step"](data)
        with step_of(data), _counting(model, data):
            state, before = _now([*_layer_state(model), *_metric_means(model)])
            share = _share_of(data)
            # Gradients that set off during the backward pass would meet statistics in an order of each worker's own.
            with backend.exchange.step([] if syncs_batch_norm(model) else history, share):
                logs = originals["train_step"](data.data)
            _exchange_state(state, before, share, backend.collectives)
        return logs

    @around_compiled
    def test_step(data):
        if not isinstance(data, Shard):
            return originals["test_step"](data)
        with step_of(data), _counting(model, data):
            state, before = _now(_metric_means(model))
            logs = originals["test_step"](data.data)
            _exchange_state(state, before, _share_of(data), backend.collectives)
        return logs

    @around_compiled
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


def _share_of(shard):
    return shard.num_local_rows / max(shard.num_rows, 1)


@contextlib.contextmanager
def _counting(model, shard):
    """Lets a step update the metrics of `model`, but not by the row that a worker without rows computes with."""
    if shard.num_local_rows > 0:
        yield
        return
    # Means over the rows are exchanged, and are right already; what is no sum must count the same steps everywhere.
    variables = [variable for variable in model.metrics_variables if variable.aggregation == "sum"]
    before = [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


@torch.compiler.disable
def _layer_state(model):
    """Returns the float tensors that layers update by themselves in a step (see `layer_state`)."""
    state = [variable.value for variable in layer_state(model)]
    # Keras wraps every PyTorch module that a layer holds. The module's buffers are no Keras variables.
    buffers = {id(buffer): buffer for wrapper in _wrappers(model) for buffer in wrapper.buffers()}
    return state + [buffer for buffer in buffers.values() if buffer.is_floating_point()]


@torch.compiler.disable
def _metric_means(model):
    return [variable.value for variable in means_of(model)]


@torch.compiler.disable
def _now(state):
    """Returns `state` and copies of it."""
    return state, [tensor.detach().clone() for tensor in state]


def _wrappers(model):
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.TorchModuleWrapper)]


@torch.compiler.disable
def _exchange_state(state, before, share, collectives):
    """Adds to each tensor the mean, over the rows, of what the workers' steps changed in it.

    Changes are exchanged, not values: what no step changes keeps its bits for ever.
    """
    with torch.no_grad():
        changes = [tensor.detach() - old for tensor, old in zip(state, before, strict=True)]
        for dtype in sorted({accumulation_dtype(change.dtype) for change in changes}, key=str):
            chosen = [
                index for index, change in enumerate(changes) if accumulation_dtype(change.dtype) == dtype
            ]
            tensors = [changes[index] for index in chosen]
            total = torch.empty(sum(t.numel() for t in tensors), dtype=dtype, device=tensors[0].device)
            collectives.finish(collectives.start_sum(tensors, total, share))
            parts = total.split([t.numel() for t in tensors])
            for index, part in zip(chosen, parts, strict=True):
                part = part.view(before[index].shape)
                # Integers were averaged as floats, whose last bit may be missing.
                state[index].copy_(
                    before[index] + (part if before[index].is_floating_point() else part.round())
                )
