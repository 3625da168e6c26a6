"""Distribution strategies for Keras 3: one script on one device, on every device of a machine, on a cluster."""

from trireme.errors import TriremeError

__version__ = "0.1.0"

__all__ = ["TriremeError", "__version__"]
