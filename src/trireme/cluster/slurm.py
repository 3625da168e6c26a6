"""The variables that srun gives to the tasks of a step."""

from collections.abc import Mapping
from itertools import count

from trireme.cluster.addresses import agreed_port, join, only_first
from trireme.cluster.cluster import Cluster
from trireme.cluster.hostlist import expand_counts, expand_hosts
from trireme.cluster.variables import Reader

JOB_ID = "SLURM_JOB_ID"
STEP_ID = "SLURM_STEP_ID"
TASK = "SLURM_PROCID"
LOCAL_TASK = "SLURM_LOCALID"
NODE = "SLURM_NODEID"
NUM_TASKS = "SLURM_STEP_NUM_TASKS"
NUM_TASKS_OF_JOB = "SLURM_NTASKS"
HOSTS = "SLURM_STEP_NODELIST"
HOSTS_OF_JOB = "SLURM_JOB_NODELIST"
TASKS_PER_HOST = "SLURM_STEP_TASKS_PER_NODE"
DISTRIBUTION = "SLURM_DISTRIBUTION"
RESTARTS = "SLURM_RESTART_COUNT"
VARIABLES = (
    JOB_ID,
    STEP_ID,
    TASK,
    LOCAL_TASK,
    NODE,
    NUM_TASKS,
    NUM_TASKS_OF_JOB,
    HOSTS,
    HOSTS_OF_JOB,
    TASKS_PER_HOST,
    DISTRIBUTION,
    RESTARTS,
)
NEEDS = f"{STEP_ID} and {TASK} in a step of several tasks: start the script with `srun`"
ADVICE = "Start the script with `srun python train.py`, one task per worker."


def detect(environ: Mapping[str, str]) -> Cluster | None:
    """The tasks of the step this process runs in, or None outside of a step of several tasks.

    The shell of `salloc` and the script of `sbatch` know how many tasks they may start but are none of
    them; a step of one task, which may be an interactive shell, says nothing either.

    Every task's host follows from the block and cyclic distributions; under any other only worker 0's is
    known. Ports are computed from the number of the job and the step.

    Raises:
        ConfigurationError: variables are missing, malformed or contradict each other.
    """
    if STEP_ID not in environ or TASK not in environ:
        return None
    if environ.get(NUM_TASKS, environ.get(NUM_TASKS_OF_JOB)) == "1":
        return None
    reader = Reader(environ, "Slurm", ADVICE)
    rank, size = reader.place(TASK, NUM_TASKS if NUM_TASKS in environ else NUM_TASKS_OF_JOB)
    node, local_rank = reader.number(NODE), reader.number(LOCAL_TASK)
    run_id = f"{reader.text(JOB_ID)}.{environ[STEP_ID]}"
    hosts = _hosts(reader, environ)
    counts = _counts(reader, environ, hosts, size)
    reader.check()
    if node >= len(counts) or local_rank >= counts[node]:
        reader.wrong(f"{NODE} is {node} and {LOCAL_TASK} is {local_rank}, but {TASKS_PER_HOST} is {counts}")
        reader.check()
    return Cluster(
        workers=_workers(reader, environ, hosts, counts, rank, (node, local_rank), run_id),
        rank=rank,
        run_id=run_id,
        local=(local_rank, counts[node]),
        source="slurm",
    )


def _hosts(reader: Reader, environ: Mapping[str, str]) -> list[str]:
    name = HOSTS if HOSTS in environ else HOSTS_OF_JOB
    try:
        return expand_hosts(reader.text(name))
    except ValueError as error:
        reader.wrong(f"{name}: {error}")
        return []


def _counts(reader: Reader, environ: Mapping[str, str], hosts: list[str], size: int) -> list[int]:
    """The number of tasks on each host."""
    try:
        counts = expand_counts(reader.text(TASKS_PER_HOST))
    except ValueError as error:
        reader.wrong(f"{TASKS_PER_HOST}: {error}")
        return []
    if hosts and (len(counts), sum(counts)) != (len(hosts), size):
        reader.wrong(
            f"{TASKS_PER_HOST}={environ[TASKS_PER_HOST]} is {sum(counts)} tasks on {len(counts)} hosts, "
            f"but there are {size} tasks and {len(hosts)} hosts ({','.join(hosts[:8])})"
        )
    return counts


def _workers(
    reader: Reader,
    environ: Mapping[str, str],
    hosts: list[str],
    counts: list[int],
    rank: int,
    place: tuple[int, int],
    run_id: str,
) -> tuple[str, ...]:
    # A requeued job must not meet what is left of its former self.
    port = agreed_port(f"slurm/{run_id}/{environ.get(RESTARTS, '0')}")
    distribution = environ.get(DISTRIBUTION, "block").partition(":")[0].partition(",")[0].partition("=")[0]
    places = {"block": block, "cyclic": cyclic}.get(distribution)
    if places is None:
        return only_first(join(hosts[0], port), sum(counts))
    tasks = places(counts)
    if tasks[rank] != place:
        reader.wrong(
            f"task {rank} is task {place[1]} of host {place[0]}, but with {DISTRIBUTION}={distribution} it "
            f"would be task {tasks[rank][1]} of host {tasks[rank][0]}: pass --distribution=block to srun"
        )
        reader.check()
    return tuple(join(hosts[node], port + local_rank) for node, local_rank in tasks)


def block(counts: list[int]) -> list[tuple[int, int]]:
    """(host, place on that host) of each task when each host is filled before the next."""
    return [(node, local_rank) for node, number in enumerate(counts) for local_rank in range(number)]


def cyclic(counts: list[int]) -> list[tuple[int, int]]:
    """(host, place on that host) of each task when the hosts take turns until they are full."""
    places: list[tuple[int, int]] = []
    for turn in count():
        takers = [(node, turn) for node, number in enumerate(counts) if turn < number]
        if not takers:
            return places
        places += takers
    return places
