"""JAX's side of asynchronous training: the exchange as a callback of the compiled step, rows as arrays."""

import functools

import jax
import numpy as np
from jax.experimental import io_callback
from keras.src import tree
from keras.src.backend.jax import trainer as keras_trainer

from trireme.backends.parameter_server.data import Ranged
from trireme.backends.step import weighting_scalars


def replace_apply(model, exchange):
    """See `backend_side`."""
    optimizer, description = model.optimizer, exchange.description
    position = {id(variable): index for index, variable in enumerate(description.variables)}

    def apply(grads, trainable_variables=None):
        variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        # Of variables that no server has, the anchors of tables, gradients only say that the backward pass is over.
        positions = [position.get(id(variable)) for variable in variables]

        def call(*gradients):
            # They are JAX's memory, which is used again after this call; a push may still be under way then.
            by_position = {
                index: np.array(g) for index, g in zip(positions, gradients, strict=True) if index is not None
            }
            values = exchange.step([by_position.get(index) for index in range(len(description.variables))])
            return (*values, np.asarray(exchange.num_updates, optimizer._iterations.dtype))

        shapes = [
            jax.ShapeDtypeStruct(variable.shape, variable.dtype)
            for variable in (*description.variables, optimizer._iterations)
        ]
        *values, num_updates = io_callback(call, tuple(shapes), *grads, ordered=True)
        for variable, value in zip(description.variables, values, strict=True):
            variable.assign(value)
        optimizer._iterations.assign(num_updates)

    object.__setattr__(optimizer, "apply", apply)


def look_up(strategy, layer, ids, anchor):
    """See `backend_side`."""
    rows = jax.ShapeDtypeStruct((*ids.shape, layer.output_dim), layer.variable_dtype)
    zero = jax.ShapeDtypeStruct((), anchor.dtype)

    def pull(ids):
        return strategy.exchange.look_up(layer, np.asarray(ids))

    def keep(ids, gradient):
        strategy.exchange.keep_row_gradient(layer, np.array(ids), np.array(gradient))
        return np.zeros((), zero.dtype)

    @jax.custom_vjp
    def rows_of(ids, anchor):
        return jax.pure_callback(pull, rows, ids)

    def forward(ids, anchor):
        return rows_of(ids, anchor), ids

    def backward(ids, gradient):
        # The zero comes out of the callback, so that the optimizer's step cannot be before it.
        return np.zeros(ids.shape, jax.dtypes.float0), jax.pure_callback(keep, zero, ids, gradient)

    rows_of.defvjp(forward, backward)
    return rows_of(ids, anchor)


def replace_steps(model, share):
    """See `backend_side`. A step is given its batch."""
    if share is None:
        return
    original = model.train_step
    scalar = jax.ShapeDtypeStruct((), np.float32)

    @functools.wraps(original)
    def train_step(state, data):
        with weighting_scalars(io_callback(lambda: np.float32(share()), scalar, ordered=True)):
            return original(state, data)

    object.__setattr__(model, "train_step", train_step)


def batches(adapter):
    """See `backend_side`."""
    for numbers in adapter.row_numbers():
        yield tree.map_structure(
            lambda leaf, numbers=numbers: leaf.convert_to_jax_compatible(leaf[numbers]),
            adapter.inputs,
            none_is_leaf=False,
        )


def compile_update(optimizer, variables):
    """See `backend_side`."""
    names = [id(variable) for variable in variables]
    if names != [id(variable) for variable in optimizer._trainable_variables]:
        # JAX has a gradient for every variable, so this is rare.
        def update(gradients):
            optimizer.apply(list(map(jax.numpy.asarray, gradients)), variables)
            return [np.asarray(variable.value) for variable in variables]

        return update
    step = jax.jit(optimizer.stateless_apply)

    def update(gradients):
        values, state = step(
            [variable.value for variable in optimizer.variables], gradients, [v.value for v in variables]
        )
        for variable, value in zip([*variables, *optimizer.variables], [*values, *state], strict=True):
            variable.assign(value)
        return list(map(np.asarray, values))

    return update


def values_in_steps(model, variables):
    """See `backend_side`. While Keras' loop runs, the values are in its state and not in the variables."""
    in_state = {}
    if getattr(model, "_jax_state", None) and not model._jax_state_synced:
        for group in ("metrics_variables", "non_trainable_variables"):
            pairs = zip(getattr(model, group), model._jax_state[group], strict=True)
            in_state |= {id(variable): value for variable, value in pairs}
    return [np.asarray(in_state.get(id(variable), variable._value)) for variable in variables]


def _unless_ranged(original):
    """Keeps Keras from taking a batch ahead: asking for the rows after a range says that the range is done."""

    @functools.wraps(original)
    def one_batch_ahead_iterator(self, iterator):
        return iterator if isinstance(self.data_adapter, Ranged) else original(self, iterator)

    return one_batch_ahead_iterator


keras_trainer.JAXEpochIterator._one_batch_ahead_iterator = _unless_ranged(
    keras_trainer.JAXEpochIterator._one_batch_ahead_iterator
)
