"""Distribution strategies for Keras 3: one script on one device, all devices of a machine, or a cluster."""

from trireme.callbacks import BackupAndRestore
from trireme.errors import TriremeError, WorkersFailed
from trireme.launch.function import launch
from trireme.strategies import (
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    get_strategy,
    is_chief,
)

__version__ = "0.1.0"

__all__ = [
    "BackupAndRestore",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "Strategy",
    "TriremeError",
    "WorkersFailed",
    "get_strategy",
    "is_chief",
    "launch",
    "__version__",
]
