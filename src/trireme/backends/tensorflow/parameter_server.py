"""TensorFlow's side of asynchronous training: the exchange inside the traced step, rows as a `tf.data.Dataset`."""

import functools

import keras
import numpy as np
import tensorflow as tf

from trireme.backends.step import weighting_scalars
from trireme.backends.tensorflow.data import take_numbered
from trireme.backends.tensorflow.train_step import refuse_xla
from trireme.parameter_server import RowGradient


def replace_apply(model, exchange):
    """See `backend_side`."""
    if model.jit_compile:
        refuse_xla(model)
    optimizer, description = model.optimizer, exchange.description
    position = {id(variable): index for index, variable in enumerate(description.variables)}

    def apply(grads, trainable_variables=None):
        variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
        if not pairs:
            raise ValueError("No gradients provided for any variable.")
        packed = [_packed(gradient) for gradient, _ in pairs]
        # Of variables that no server has, the anchors of tables, gradients only say that the backward pass is over.
        positions = [position.get(id(variable)) for _, variable in pairs]

        def call(*flat):
            rest, gradients = list(flat), [None] * len(description.variables)
            for index, parts in zip(positions, packed, strict=True):
                arrays = [rest.pop(0) for _ in parts]
                if index is not None:
                    gradients[index] = arrays[0] if len(arrays) == 1 else RowGradient(*arrays)
            values = exchange.step(gradients)
            return [*values, np.int64(exchange.num_updates)]

        dtypes = [variable.value.dtype for variable in description.variables]
        *values, num_updates = tf.numpy_function(call, tf.nest.flatten(packed), [*dtypes, tf.int64])
        for variable, value in zip(description.variables, values, strict=True):
            variable.assign(tf.ensure_shape(value, variable.shape))
        optimizer._iterations.assign(tf.ensure_shape(num_updates, ()))

    object.__setattr__(optimizer, "apply", apply)


def _packed(gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return [tf.cast(gradient.indices, tf.int64), gradient.values]
    return [gradient]


def replace_steps(model, share):
    """See `backend_side`. A graph takes its batch itself, beside whatever in it does not need the batch."""
    train_step, test_step = model.train_step, model.test_step

    @functools.wraps(train_step)
    def ordered_train_step(data):
        with _after(data):
            if share is None:
                return train_step(data)
            weight = tf.numpy_function(lambda: np.float32(share()), [], tf.float32)
            with weighting_scalars(tf.ensure_shape(weight, ())):
                return train_step(data)

    @functools.wraps(test_step)
    def ordered_test_step(data):
        with _after(data):
            return test_step(data)

    object.__setattr__(model, "train_step", ordered_train_step)
    object.__setattr__(model, "test_step", ordered_test_step)


def _after(data):
    leaves = tf.nest.flatten(data, expand_composites=True)
    return tf.control_dependencies([leaf for leaf in leaves if leaf is not None])


def look_up(strategy, layer, ids, anchor):
    """See `backend_side`."""

    @tf.custom_gradient
    def rows_of(anchor):
        rows = tf.numpy_function(
            lambda ids: strategy.exchange.look_up(layer, ids), [ids], layer.variable_dtype
        )
        rows.set_shape([*ids.shape, layer.output_dim])

        def keep(ids, gradient):
            strategy.exchange.keep_row_gradient(layer, ids, gradient)
            return np.zeros((), anchor.dtype.as_numpy_dtype)

        def backward(upstream):
            zero = tf.numpy_function(keep, [ids, upstream], anchor.dtype)
            return tf.ensure_shape(zero, ())

        return rows, backward

    return rows_of(tf.convert_to_tensor(anchor))


def batches(adapter):
    """See `backend_side`. Nothing is read ahead: asking for the rows after a range says that the range is done."""
    iterators = {}

    def next_numbers(step):
        if step == 0:
            iterators["newest"] = adapter.row_numbers()
        return next(iterators["newest"], np.empty(0, np.int64))

    # A generator's dataset would call Python three times for a batch, and changes how the process frees memory.
    numbers = tf.data.Dataset.counter().map(
        lambda step: tf.ensure_shape(tf.numpy_function(next_numbers, [step], tf.int64), [None])
    )
    numbers = numbers.take_while(lambda numbers: tf.size(numbers) > 0)
    inputs = tf.data.Dataset.from_tensors(adapter.inputs).repeat()
    rows = tf.data.Dataset.zip((numbers, inputs))
    rows = rows.map(
        lambda numbers, inputs: keras.tree.traverse(lambda leaf: take_numbered(leaf, numbers), inputs)
    )
    # The inputs are one large constant: optimising the graph would copy it.
    return _as_it_is(rows)


def generated(generator, signature):
    """The same of a function that yields the batches themselves."""
    return _as_it_is(tf.data.Dataset.from_generator(generator, output_signature=signature))


def _as_it_is(dataset):
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    return dataset.with_options(options)


def compile_update(optimizer, variables):
    """See `backend_side`."""

    @tf.function(input_signature=[tf.TensorSpec(v.shape, v.dtype) for v in variables], autograph=False)
    def update(*gradients):
        optimizer.apply(list(gradients), variables)
        return [variable.value.read_value() for variable in variables]

    # Choosing among traces takes as long as a small step.
    call = update.get_concrete_function()
    return lambda gradients: [value.numpy() for value in call(*map(tf.convert_to_tensor, gradients))]


def values_in_steps(model, variables):
    """See `backend_side`."""
    return [variable.numpy() for variable in variables]
