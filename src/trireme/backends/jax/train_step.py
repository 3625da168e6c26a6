"""The only file that knows Keras' JAX trainer."""

import functools

import jax
import numpy as np
from keras.src import tree
from keras.src.backend.jax import distribution_lib as keras_distribution
from keras.src.backend.jax import trainer as keras_trainer
from keras.src.distribution import distribution_lib
from keras.src.utils.jax_utils import is_in_jax_tracing_scope

from trireme.backends.jax.distribution import Replication


@functools.cache
def install():
    """Makes Keras' JAX trainer place batches the way our `Replication` does, where that is in force.

    Keras computes one layout from the first batch and fails on a last batch that does not divide by the devices.
    """
    original = keras_trainer._distribute_data

    @functools.wraps(original)
    def distribute_data(data, layouts=None):
        distribution = distribution_lib.distribution()
        if isinstance(distribution, Replication):
            return distribution.place_batch(data)
        return original(data, layouts)

    keras_trainer._distribute_data = distribute_data
    keras_distribution.distribute_tensor = _placing_without_peers(keras_distribution.distribute_tensor)


def _placing_without_peers(original):
    """Makes an assignment to a variable that lives on several processes this process' own affair.

    JAX would compare the value with those of all other processes and so wait for them, for ever where only the
    chief assigns: while it saves a model, or restores one. What differs is broadcast when `fit` begins.
    """

    @functools.wraps(original)
    def distribute_tensor(tensor, layout):
        sharding = getattr(layout, "backend_layout", layout)
        if is_in_jax_tracing_scope(tensor) or not isinstance(sharding, jax.sharding.Sharding):
            return original(tensor, layout)
        if sharding.is_fully_addressable or not sharding.is_fully_replicated:
            return original(tensor, layout)
        if isinstance(tensor, jax.Array) and tensor.sharding == sharding:
            return tensor
        value = np.asarray(tensor)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    return distribute_tensor


def prepare_steps(model, backend):
    """Makes Keras place every variable of `model` before it compiles a step, and tell when a step waits for peers.

    Metrics and optimizers make variables of their own between the beginning of `fit` and that moment.
    """
    for name in ("train_function", "test_function", "predict_function"):
        make = f"make_{name}"
        object.__setattr__(model, make, _placing_first(getattr(model, make), model, name, backend))


def _placing_first(original, model, name, backend):
    @functools.wraps(original)
    def make_function(force=False):
        backend.place_variables(model)
        before = getattr(model, name)
        result = original(force)
        function = getattr(model, name)
        if function is not before and backend.cluster.num_workers > 1:
            setattr(model, name, _telling_waits(function, backend))
        return result

    return make_function


def _telling_waits(function, backend):
    """Tells the launcher that this process is in a step, where it waits for those that are not.

    Not in the first one, which compiles: that takes long on all of them alike.
    """
    num_calls = 0

    def call(state, iterator):
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            return function(state, iterator)
        with backend.waiting():
            return function(state, iterator)

    return call


def replicate_predictions(model, distribution):
    """Makes `predict` end with whole outputs on every process, since each can read only what it holds."""
    original = model.predict_step

    def predict_step(state, data):
        outputs, state = original(state, data)
        return tree.map_structure(_replicated(distribution), outputs), state

    object.__setattr__(model, "predict_step", predict_step)
    model.predict_function = None


def _replicated(distribution):
    return lambda output: jax.lax.with_sharding_constraint(output, distribution.replicated)
