"""The environment variables a launcher gives to its workers besides those of the cluster."""

from trireme.cluster.board import BOARD_FD
from trireme.cluster.cluster import VARIABLES as CLUSTER_VARIABLES
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
