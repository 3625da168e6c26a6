"""The variables of mpirun: Open MPI 4 and 5, and MPICH's Hydra with its descendants (Intel MPI, MVAPICH)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trireme.cluster.addresses import agreed_port, counted_up, join, only_first
from trireme.cluster.cluster import Cluster
from trireme.cluster.hostlist import first_host
from trireme.cluster.variables import Reader

OPEN_MPI_RANK = "OMPI_COMM_WORLD_RANK"
OPEN_MPI_SIZE = "OMPI_COMM_WORLD_SIZE"
OPEN_MPI_LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"
OPEN_MPI_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
OPEN_MPI_4_JOB = "OMPI_MCA_ess_base_jobid"
OPEN_MPI_4_LAUNCHER = "OMPI_MCA_orte_hnp_uri"
PMI_RANK = "PMI_RANK"
PMI_SIZE = "PMI_SIZE"
HYDRA_LOCAL_RANK = "MPI_LOCALRANKID"
HYDRA_LOCAL_SIZE = "MPI_LOCALNRANKS"
PMIX_RANK = "PMIX_RANK"
PMIX_NAMESPACE = "PMIX_NAMESPACE"
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"
SLURM_JOB_NODELIST = "SLURM_JOB_NODELIST"
SLURM_PROCID = "SLURM_PROCID"
SLURM_STEP_NUM_TASKS = "SLURM_STEP_NUM_TASKS"
VARIABLES = (
    OPEN_MPI_RANK,
    OPEN_MPI_SIZE,
    OPEN_MPI_LOCAL_RANK,
    OPEN_MPI_LOCAL_SIZE,
    OPEN_MPI_4_JOB,
    OPEN_MPI_4_LAUNCHER,
    PMI_RANK,
    PMI_SIZE,
    HYDRA_LOCAL_RANK,
    HYDRA_LOCAL_SIZE,
    PMIX_RANK,
    PMIX_NAMESPACE,
    MASTER_ADDR,
    MASTER_PORT,
)
NEEDS = f"{OPEN_MPI_RANK} (Open MPI), {PMI_RANK} and {PMI_SIZE} (MPICH) or {PMIX_RANK}, which mpirun sets"

DEFAULT_PORT = 29500
ADVICE = (
    f"mpirun tells no process where rank 0 runs. Pass it on: `export {MASTER_ADDR}=<host of rank 0>` and "
    f"`mpirun -x {MASTER_ADDR} ...` (Open MPI) or `mpirun -genv {MASTER_ADDR} <host of rank 0> ...` (MPICH)."
)

_OPEN_MPI_4_HOST = re.compile(r"tcp://([^:,;]+)|tcp6://\[([^\],;]+)")
_OPEN_MPI_5_HOST = re.compile(r"prterun-(.+)-\d+@\d+")


@dataclass(frozen=True)
class _Flavour:
    """The names that one family of MPI gives to the same four numbers."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str


OPEN_MPI = _Flavour("Open MPI", OPEN_MPI_RANK, OPEN_MPI_SIZE, OPEN_MPI_LOCAL_RANK, OPEN_MPI_LOCAL_SIZE)
HYDRA = _Flavour("MPICH", PMI_RANK, PMI_SIZE, HYDRA_LOCAL_RANK, HYDRA_LOCAL_SIZE)


def detect(environ: Mapping[str, str]) -> Cluster | None:
    """The workers that mpirun started, or None outside of it.

    Only worker 0's host is known on several machines: `MASTER_ADDR` where the user passes it on, else
    the first node of the Slurm job around it, else the host where Open MPI's mpirun runs.

    Raises:
        ConfigurationError: variables are missing or malformed, or nothing tells where rank 0 runs.
    """
    flavour = _flavour(environ)
    if flavour is None:
        return None
    reader = Reader(environ, flavour.name, ADVICE)
    rank, size = reader.place(flavour.rank, flavour.size)
    local = _local(reader, environ, flavour, size)
    host = _coordinator_host(environ, one_machine=size == 1 or (local is not None and local[1] == size))
    if host is None:
        reader.wrong(f"{flavour.size} is {size} on several machines, but the host of rank 0 is not known")
    port = reader.number(MASTER_PORT, minimum=1) if MASTER_PORT in environ else _port(environ)
    reader.check()
    address = join(host or "", port)
    one_machine = size == 1 or (local is not None and local[1] == size)
    return Cluster(
        workers=counted_up(host or "", port, size) if one_machine else only_first(address, size),
        rank=rank,
        run_id=_job(environ),
        local=local,
        source="mpi",
    )


def _flavour(environ: Mapping[str, str]) -> _Flavour | None:
    if OPEN_MPI_RANK in environ:
        return OPEN_MPI
    if _is_the_task_of_srun(environ):
        return None
    if PMI_RANK in environ and PMI_SIZE in environ:
        return HYDRA
    if PMIX_RANK in environ:
        reader = Reader(environ, "PMIx", "Start the script with Open MPI's mpirun or with srun.")
        reader.wrong(
            f"{PMIX_RANK} is {environ[PMIX_RANK]!r}, but no variable tells how many processes there are"
        )
        reader.check()
    return None


def _is_the_task_of_srun(environ: Mapping[str, str]) -> bool:
    """Whether srun itself set the PMI variables (`srun --mpi=pmi2`). Slurm's own tell more: the hosts.

    An mpirun inside a job starts its helpers by srun, and their variables stay in place with other numbers.
    """
    task, count = environ.get(SLURM_PROCID), environ.get(SLURM_STEP_NUM_TASKS)
    if task is None or count is None:
        return False
    if PMI_RANK in environ:
        return (environ[PMI_RANK], environ.get(PMI_SIZE)) == (task, count)
    return environ.get(PMIX_RANK) == task


def _local(
    reader: Reader, environ: Mapping[str, str], flavour: _Flavour, size: int
) -> tuple[int, int] | None:
    if flavour.local_rank in environ and flavour.local_size in environ:
        return reader.place(flavour.local_rank, flavour.local_size)
    return (0, 1) if size == 1 else None


def _coordinator_host(environ: Mapping[str, str], one_machine: bool) -> str | None:
    told = environ.get(MASTER_ADDR, "").strip()
    if told or one_machine:
        return told or "127.0.0.1"
    if environ.get(SLURM_JOB_NODELIST):
        return first_host(environ[SLURM_JOB_NODELIST])
    return _launcher_host(environ)


def _launcher_host(environ: Mapping[str, str]) -> str | None:
    """The host of Open MPI's mpirun, which starts rank 0 beside itself unless a hostfile says otherwise."""
    match = _OPEN_MPI_4_HOST.search(environ.get(OPEN_MPI_4_LAUNCHER, ""))
    if match:
        return match[1] or match[2]
    match = _OPEN_MPI_5_HOST.fullmatch(environ.get(PMIX_NAMESPACE, ""))
    return match[1] if match else None


def _job(environ: Mapping[str, str]) -> str:
    """The name of this run of mpirun; MPICH gives it none."""
    return environ.get(OPEN_MPI_4_JOB) or environ.get(PMIX_NAMESPACE) or ""


def _port(environ: Mapping[str, str]) -> int:
    job = _job(environ)
    return agreed_port(job) if job else DEFAULT_PORT
