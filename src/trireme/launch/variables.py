"""The environment variables a launcher gives to its workers besides those of the cluster."""

from collections.abc import Mapping

from trireme.cluster.board import BOARD_FD
from trireme.cluster.cluster import VARIABLES as CLUSTER_VARIABLES
from trireme.errors import ConfigurationError
from trireme.launch.guardian import LAUNCHER

BACKEND = "TRIREME_BACKEND"
SEED = "TRIREME_SEED"
TIMEOUT_S = "TRIREME_TIMEOUT_S"
LOG_DIR = "TRIREME_LOG_DIR"
FAILURE_FILE = "TRIREME_FAILURE_FILE"
SHARED_MEMORY_FD = "TRIREME_SHARED_MEMORY_FD"
PORT_FD = "TRIREME_PORT_FD"
RELAUNCHED = "TRIREME_RELAUNCHED"
# Where a run is backed up, how often, and how often it was started before.
BACKUP = "TRIREME_BACKUP"
BACKUP_EVERY = "TRIREME_BACKUP_EVERY"
GENERATION = "TRIREME_GENERATION"
# The secret of a run's agents, which is none of the workers' business.
TOKEN = "TRIREME_TOKEN"
# What goes wrong in a test of what a run survives.
FAULTS = "TRIREME_FAULTS"
SERVER_SOCKETS = "TRIREME_SERVER_SOCKETS"
SNAPSHOTS = "TRIREME_SNAPSHOTS"
SNAPSHOT_INTERVAL_S = "TRIREME_SNAPSHOT_INTERVAL_S"
# How long processes that come one by one, as pods do, wait for those that are missing.
RENDEZVOUS_TIMEOUT_S = "TRIREME_RENDEZVOUS_TIMEOUT_S"
# Who starts the workers of a pod again; set in every pod.
RESTARTED_BY = "TRIREME_RESTARTED_BY"
# Where others find a pod: its own name may lead nowhere yet when it begins to listen.
POD_IP = "TRIREME_POD_IP"

# What a launcher must not hand on when it runs inside a worker of another launcher.
OF_ONE_WORKER = (
    *CLUSTER_VARIABLES,
    BACKEND,
    LOG_DIR,
    FAILURE_FILE,
    BOARD_FD,
    SHARED_MEMORY_FD,
    PORT_FD,
    RELAUNCHED,
    BACKUP,
    BACKUP_EVERY,
    GENERATION,
    SERVER_SOCKETS,
    LAUNCHER,
    TOKEN,
)


def duration_s(environ: Mapping[str, str], name: str, default_s: float) -> float:
    """The seconds that a variable holds, or `default_s` where it is not set.

    Raises:
        ConfigurationError: it holds no duration.
    """
    text = environ.get(name, "")
    try:
        value_s = float(text) if text else default_s
    except ValueError:
        value_s = 0.0
    if not 0 < value_s < float("inf"):
        raise ConfigurationError(f"{name} is {text!r}: expected seconds, more than 0")
    return value_s
