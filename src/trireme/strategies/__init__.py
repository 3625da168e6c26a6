"""What the user picks: how a model trains on several devices."""

from collections.abc import Callable

from trireme.errors import UsageError
from trireme.strategies.mirrored import MirroredStrategy, MultiWorkerMirroredStrategy
from trireme.strategies.one_device import OneDeviceStrategy
from trireme.strategies.parameter_server import ParameterServerStrategy
from trireme.strategies.strategy import Strategy, get_strategy, is_chief

__all__ = [
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "Strategy",
    "by_name",
    "get_strategy",
    "is_chief",
]

_BY_NAME: dict[str, Callable[[], Strategy]] = {
    "mirrored": MirroredStrategy,
    "multi_worker_mirrored": MultiWorkerMirroredStrategy,
    "parameter_server": ParameterServerStrategy,
    "one_device": OneDeviceStrategy,
}


def by_name(name: str) -> Callable[[], Strategy]:
    """Returns the strategy class that `trireme run --strategy NAME` means.

    Raises:
        UsageError: there is no such strategy.
    """
    if name not in _BY_NAME:
        raise UsageError(f"There is no strategy {name!r}. There are: {', '.join(_BY_NAME)}.")
    return _BY_NAME[name]
