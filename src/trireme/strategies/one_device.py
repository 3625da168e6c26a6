"""One device: plain Keras, under the same API."""

from trireme.cluster.cluster import Cluster
from trireme.strategies.strategy import Strategy, loaded_backend


class OneDeviceStrategy(Strategy):
    """Trains on one device, exactly as Keras does without a strategy.

    For scripts that take their strategy as an option.
    """

    def __init__(self) -> None:
        super().__init__(Cluster(), loaded_backend())
