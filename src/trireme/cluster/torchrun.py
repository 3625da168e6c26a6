"""The variables of torchrun, which many scripts and the PyTorch operator also set by hand."""

from collections.abc import Mapping

from trireme.cluster.addresses import agreed_port, counted_up, join, only_first
from trireme.cluster.cluster import Cluster
from trireme.cluster.variables import Reader

RANK = "RANK"
WORLD_SIZE = "WORLD_SIZE"
LOCAL_RANK = "LOCAL_RANK"
LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"
RUN_ID = "TORCHELASTIC_RUN_ID"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
VARIABLES = (
    RANK,
    WORLD_SIZE,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    MASTER_ADDR,
    MASTER_PORT,
    RUN_ID,
    RESTART_COUNT,
    USE_AGENT_STORE,
)
NEEDS = f"{RANK} and {WORLD_SIZE}, which torchrun sets"
ADVICE = (
    f"Start the script with torchrun, or set {RANK}, {WORLD_SIZE}, {MASTER_ADDR} and {MASTER_PORT} by hand; "
    f"if this is one process alone, `unset {RANK} {WORLD_SIZE}`."
)


def detect(environ: Mapping[str, str]) -> Cluster | None:
    """The workers that torchrun started, or None outside of it.

    Only worker 0's host is told, so on several machines the other addresses are unknown.

    Raises:
        ConfigurationError: variables are missing or malformed; the message lists all of them.
    """
    if RANK not in environ or WORLD_SIZE not in environ:
        return None
    reader = Reader(environ, "torchrun", ADVICE)
    rank, size = reader.place(RANK, WORLD_SIZE)
    host, port = _coordinator(reader, environ, size)
    local = _local(reader, environ)
    reader.check()
    one_machine = size == 1 or (local is not None and local[1] == size)
    return Cluster(
        workers=counted_up(host, port, size) if one_machine else only_first(join(host, port), size),
        rank=rank,
        run_id=environ.get(RUN_ID, ""),
        local=local,
        source="torchrun",
    )


def _coordinator(reader: Reader, environ: Mapping[str, str], size: int) -> tuple[str, int]:
    if size == 1 and MASTER_ADDR not in environ:
        return "127.0.0.1", 0
    host, port = reader.text(MASTER_ADDR), reader.number(MASTER_PORT, minimum=1)
    if environ.get(USE_AGENT_STORE) != "True":
        return host, port
    # torchrun itself listens at MASTER_PORT, and a restarted group must not meet its former self.
    name = f"{host}:{port}/{environ.get(RUN_ID, '')}/{environ.get(RESTART_COUNT, '0')}"
    return host, agreed_port(name)


def _local(reader: Reader, environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Operators that start one process per pod tell no local rank."""
    if LOCAL_RANK not in environ or LOCAL_WORLD_SIZE not in environ:
        return None
    return reader.place(LOCAL_RANK, LOCAL_WORLD_SIZE)
