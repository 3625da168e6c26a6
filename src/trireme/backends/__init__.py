"""How each framework does it: one package per Keras backend, all behind the contract in `backend.py`."""

import importlib

from trireme.errors import UsageError

BACKENDS = ("tensorflow", "jax", "torch")

_loaded = {}


def load(name):
    """Returns the one `Backend` object of this process for the Keras backend `name`.

    Raises:
        UsageError: Trireme has no such backend.
    """
    if name not in BACKENDS:
        raise UsageError(
            f"Trireme has no backend {name!r}. It has: {', '.join(BACKENDS)}. "
            "Choose one with the environment variable KERAS_BACKEND."
        )
    if name not in _loaded:
        module = importlib.import_module(f"trireme.backends.{name}")
        _loaded[name] = module.create_backend()
    return _loaded[name]
