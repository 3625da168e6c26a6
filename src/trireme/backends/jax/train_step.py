"""The only file that knows Keras' JAX trainer."""

import functools

import jax
from keras.src import tree
from keras.src.backend.jax import trainer as keras_trainer
from keras.src.distribution import distribution_lib

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


def place_before_steps(model, backend):
    """Makes Keras place every variable of `model` before it compiles a step.

    Metrics and optimizers make variables of their own between the beginning of `fit` and that moment.
    """
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        object.__setattr__(model, name, _placing_first(getattr(model, name), model, backend))


def _placing_first(original, model, backend):
    @functools.wraps(original)
    def make_function(force=False):
        backend.place_variables(model)
        return original(force)

    return make_function


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
