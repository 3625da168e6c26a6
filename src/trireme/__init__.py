"""Distribution strategies for Keras 3: one script on one device, all devices of a machine, or a cluster."""

from trireme.callbacks import BackupAndRestore
from trireme.errors import TriremeError, WorkersFailed
from trireme.launch.function import launch
from trireme.parameter_server import FixedShardsPartitioner, MinSizePartitioner
from trireme.strategies import (
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    Strategy,
    get_strategy,
    is_chief,
)

__version__ = "0.1.0"

__all__ = [
    "BackupAndRestore",
    "FixedShardsPartitioner",
    "MinSizePartitioner",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "Strategy",
    "TriremeError",
    "WorkersFailed",
    "get_strategy",
    "is_chief",
    "launch",
    "__version__",
]
