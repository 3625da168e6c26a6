"""The variables that Kubeflow Trainer gives to its pods: its JAX plugin's and its PyTorch plugin's."""

from collections.abc import Mapping

from trireme.cluster.addresses import EXPECTED, is_address, join, only_first
from trireme.cluster.cluster import Cluster
from trireme.cluster.variables import Reader

JAX_NUM_PROCESSES = "JAX_NUM_PROCESSES"
JAX_PROCESS_ID = "JAX_PROCESS_ID"
JAX_COORDINATOR = "JAX_COORDINATOR_ADDRESS"
JAX_VARIABLES = (JAX_NUM_PROCESSES, JAX_PROCESS_ID, JAX_COORDINATOR)

PET_NUM_NODES = "PET_NNODES"
PET_NODE_RANK = "PET_NODE_RANK"
PET_MASTER_ADDR = "PET_MASTER_ADDR"
PET_MASTER_PORT = "PET_MASTER_PORT"
PET_VARIABLES = (PET_NUM_NODES, PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT)

VARIABLES = (*JAX_VARIABLES, *PET_VARIABLES)
NEEDS = f"{JAX_NUM_PROCESSES} and {JAX_PROCESS_ID}, or {PET_NUM_NODES} and {PET_NODE_RANK}"


def detect(environ: Mapping[str, str]) -> Cluster | None:
    """One worker for each pod of a TrainJob, or None outside of one.

    Only worker 0's address is told. How many processes a pod should hold (`PET_NPROC_PER_NODE`) is for
    torchrun; Trireme looks at the devices of the pod instead.

    Raises:
        ConfigurationError: variables are missing or malformed; the message lists all of them.
    """
    if JAX_NUM_PROCESSES in environ or JAX_PROCESS_ID in environ:
        return _from_jax(environ)
    if PET_NUM_NODES in environ and PET_NODE_RANK in environ:
        return _from_torch(environ)
    return None


def _from_jax(environ: Mapping[str, str]) -> Cluster:
    reader = Reader(environ, "JAX", f"Set all of {', '.join(JAX_VARIABLES)}, or none of them.")
    rank, size = reader.place(JAX_PROCESS_ID, JAX_NUM_PROCESSES)
    address = reader.text(JAX_COORDINATOR)
    if address and not is_address(address):
        reader.wrong(f"{JAX_COORDINATOR} is {address!r}: {EXPECTED}")
    reader.check()
    return Cluster(workers=only_first(address, size), rank=rank, source="kubeflow")


def _from_torch(environ: Mapping[str, str]) -> Cluster:
    reader = Reader(environ, "PyTorch's TrainJob", f"Set all of {', '.join(PET_VARIABLES)}, or none of them.")
    if ":" in environ[PET_NUM_NODES]:
        reader.wrong(
            f"{PET_NUM_NODES} is {environ[PET_NUM_NODES]!r}, a range: a synchronous run needs one number"
        )
        reader.check()
    rank, size = reader.place(PET_NODE_RANK, PET_NUM_NODES)
    if size == 1 and PET_MASTER_ADDR not in environ:
        reader.check()
        return Cluster(source="kubeflow")
    host, port = reader.text(PET_MASTER_ADDR), reader.number(PET_MASTER_PORT, minimum=1)
    reader.check()
    return Cluster(workers=only_first(join(host, port), size), rank=rank, source="kubeflow")
