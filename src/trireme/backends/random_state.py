"""The random state of one process, outside of models: that of Python, NumPy, PyTorch, Keras and TensorFlow."""

import random
import sys

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random import seed_generator


def of_globals():
    """Returns the state of the generators of Python, NumPy and, if it is loaded, PyTorch.

    Orders of data are drawn from these. Returned as `(state, arrays)` of a backup.
    """
    version, numbers, gauss = random.getstate()
    kind, key, position, has_gauss, cached = np.random.get_state()
    state = {"python": [version, gauss], "numpy": [kind, position, has_gauss, cached]}
    arrays = {"python": np.array(numbers, np.uint32), "numpy": np.array(key)}
    if "torch" in sys.modules:
        arrays["torch"] = np.array(_torch_streams().state())
    return state, arrays


def set_global(state, arrays):
    """Puts these generators back to where `of_globals` found them."""
    version, gauss = state["python"]
    random.setstate((version, tuple(int(number) for number in arrays["python"]), gauss))
    kind, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(arrays["numpy"]), position, has_gauss, cached))
    if "torch" in arrays:
        _torch_streams().set_state(np.array(arrays["torch"]))


def everything():
    """Returns the state of all global generators of this process, as `(state, arrays)` of a backup."""
    state, arrays = of_globals()
    generator = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    if generator is not None:
        arrays["keras"] = np.array(keras.ops.convert_to_numpy(generator.state))
    if "tensorflow" in sys.modules:
        _take_tensorflow(state, arrays)
    return state, arrays


def set_everything(state, arrays):
    """Puts all generators back to where `everything` found them."""
    set_global(state, arrays)
    if "keras" in arrays:
        seed_generator.global_seed_generator().state.assign(np.array(arrays["keras"]))
    if state.get("tensorflow"):
        _set_tensorflow(state["tensorflow"], arrays)


def _take_tensorflow(state, arrays):
    context = _tensorflow_context()
    operations = getattr(context, "_rng", None)
    if context._seed is not None and operations is not None:
        version, numbers, gauss = operations.getstate()
        state["tensorflow"] = {"seed": int(context._seed), "operations": [version, gauss]}
        arrays["tensorflow_operations"] = np.array(numbers, np.uint32)
    else:
        state["tensorflow"] = {}
    from tensorflow.python.ops import stateful_random_ops

    if stateful_random_ops.global_generator is not None:
        arrays["tensorflow_generator"] = stateful_random_ops.global_generator.state.numpy()
        state["tensorflow"]["has_generator"] = True


def _set_tensorflow(state, arrays):
    import tensorflow as tf

    if "operations" in state:
        # Sets both: TensorFlow draws the seeds of single operations from a generator of Python's.
        tf.random.set_seed(state["seed"])
        version, gauss = state["operations"]
        numbers = tuple(int(number) for number in arrays["tensorflow_operations"])
        _tensorflow_context()._rng.setstate((version, numbers, gauss))
    if state.get("has_generator"):
        tf.random.get_global_generator().state.assign(np.array(arrays["tensorflow_generator"]))


def _torch_streams():
    from trireme.backends.torch import random_streams

    return random_streams


def _tensorflow_context():
    from tensorflow.python.eager import context

    return context.context()
