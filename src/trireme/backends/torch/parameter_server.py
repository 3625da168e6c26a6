"""PyTorch's side of asynchronous training: the exchange between the backward pass and the next step."""

import functools

import numpy as np
import torch
from keras import ops
from keras.src import tree

from trireme.backends.step import weighting_scalars


def replace_apply(model, exchange):
    """See `backend_side`."""
    optimizer, description = model.optimizer, exchange.description
    position = {id(variable): index for index, variable in enumerate(description.variables)}

    @torch.compiler.disable
    def apply(grads, trainable_variables=None):
        variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        gradients = [None] * len(description.variables)
        for gradient, variable in zip(grads, variables, strict=True):
            index = position.get(id(variable))
            if index is not None and gradient is not None:
                gradients[index] = _host(gradient)
        values = exchange.step(gradients)
        for variable, value in zip(description.variables, values, strict=True):
            # What arrived cannot be written to, which PyTorch does not know of memory.
            variable.assign(np.array(value))
        optimizer._iterations.assign(exchange.num_updates)

    object.__setattr__(optimizer, "apply", apply)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, ids, strategy, layer):
        ctx.ids, ctx.strategy, ctx.layer = ids, strategy, layer
        rows = strategy.exchange.look_up(layer, ids.cpu().numpy())
        return torch.from_numpy(np.array(rows)).to(anchor.device)

    @staticmethod
    def backward(ctx, gradient):
        ctx.strategy.exchange.keep_row_gradient(ctx.layer, ctx.ids.cpu().numpy(), _host(gradient))
        return torch.zeros((), device=gradient.device), None, None, None


@torch.compiler.disable
def look_up(strategy, layer, ids, anchor):
    """See `backend_side`."""
    if ids.device.type == "meta":
        # Keras asks for the shape only.
        return torch.empty((*ids.shape, layer.output_dim), dtype=anchor.dtype, device="meta")
    return _LookUp.apply(anchor, ids, strategy, layer)


def replace_steps(model, share):
    """See `backend_side`. A step is given its batch."""
    if share is None:
        return
    original = model.train_step

    @functools.wraps(original)
    def train_step(data):
        with weighting_scalars(share()):
            return original(data)

    object.__setattr__(model, "train_step", train_step)


def batches(adapter):
    """See `backend_side`."""
    for numbers in adapter.row_numbers():
        yield tree.map_structure(
            lambda leaf, numbers=numbers: leaf.convert_to_torch_compatible(leaf[numbers]),
            adapter.inputs,
            none_is_leaf=False,
        )


def compile_update(optimizer, variables):
    """See `backend_side`."""

    def update(gradients):
        # What arrived cannot be written to, which PyTorch does not know of memory.
        optimizer.apply([ops.convert_to_tensor(np.array(g)) for g in gradients], variables)
        # The next step writes to the memory of this one's values.
        return [np.array(ops.convert_to_numpy(variable)) for variable in variables]

    return update


def values_in_steps(model, variables):
    """See `backend_side`."""
    return [ops.convert_to_numpy(variable) for variable in variables]


def _host(tensor):
    tensor = tensor.detach()
    # NumPy has no bfloat16 that PyTorch could convert to.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
