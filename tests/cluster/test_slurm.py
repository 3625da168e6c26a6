import pytest

from trireme.cluster.addresses import host_of, port_of
from trireme.cluster.slurm import block, cyclic, detect
from trireme.errors import ConfigurationError

# What Slurm 22.05 sets, without the variables nobody needs.
SALLOC = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "interactive",
    "SLURM_JOB_NODELIST": "n[0-1]",
    "SLURM_NTASKS": "4",
    "SLURM_TASKS_PER_NODE": "3,1",
}
# The batch script runs on the first node and looks like task 0, but is no task of any step.
SBATCH = {**SALLOC, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_GTIDS": "0"}


def step(rank, node, local_rank, **changes):
    environ = {
        **SALLOC,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "n[0-1]",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "3,1",
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(local_rank),
        **changes,
    }
    return {name: value for name, value in environ.items() if value is not None}


BLOCK = [(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 0)]
CYCLIC = [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 0, 2)]


@pytest.mark.parametrize(
    ("distribution", "places", "hosts"),
    [
        # srun leaves the variable out when nobody asked for a distribution.
        (None, BLOCK, ["n0", "n0", "n0", "n1"]),
        ("block", BLOCK, ["n0", "n0", "n0", "n1"]),
        # The second part distributes over the sockets of a node.
        ("block:cyclic", BLOCK, ["n0", "n0", "n0", "n1"]),
        ("block:cyclic,Pack", BLOCK, ["n0", "n0", "n0", "n1"]),
        ("block,NoPack", BLOCK, ["n0", "n0", "n0", "n1"]),
        ("cyclic", CYCLIC, ["n0", "n1", "n0", "n0"]),
        ("plane=1", CYCLIC, ["n0", "?", "?", "?"]),
        ("plane", CYCLIC, ["n0", "?", "?", "?"]),
        ("arbitrary", CYCLIC, ["n0", "?", "?", "?"]),
    ],
)
def test_every_task_of_a_step_sees_the_same_cluster(distribution, places, hosts):
    clusters = [detect(step(*place, SLURM_DISTRIBUTION=distribution)) for place in places]
    assert [cluster.rank for cluster in clusters] == [0, 1, 2, 3]
    assert len({cluster.workers for cluster in clusters}) == 1
    assert [host_of(address) for address in clusters[0].workers] == hosts
    assert [cluster.local for cluster in clusters] == [(place[2], [3, 1][place[1]]) for place in places]
    assert {(cluster.run_id, cluster.source) for cluster in clusters} == {("7.0", "slurm")}


def test_ports_of_one_host_differ_and_ports_of_jobs_differ():
    def ports(**changes):
        return [port_of(address) for address in detect(step(0, 0, 0, **changes)).workers]

    first = ports()
    assert first[1] == first[0] + 1
    assert first[2] == first[0] + 2
    assert len({ports(SLURM_JOB_ID=str(job))[0] for job in range(100)}) > 60
    # Two steps of a job may run at one time; a requeued job may meet what is left of itself.
    assert ports(SLURM_STEP_ID="1") != first
    assert ports(SLURM_RESTART_COUNT="1") != first


@pytest.mark.parametrize(
    "environ",
    [
        {},
        SALLOC,
        SBATCH,
        # `srun --pty bash`, or srun of a single worker.
        {
            **SBATCH,
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": "1",
            "SLURM_STEP_NODELIST": "n0",
            "SLURM_STEP_TASKS_PER_NODE": "1",
        },
        # An interactive step as salloc may make one: its number is -6 as an unsigned one.
        {**SBATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"},
    ],
)
def test_detects_nothing_outside_of_a_step_of_several_tasks(environ):
    assert detect(environ) is None


def test_a_step_on_a_part_of_the_job_is_what_counts():
    environ = step(
        1,
        0,
        1,
        SLURM_STEP_NODELIST="n1",
        SLURM_STEP_NUM_TASKS="2",
        SLURM_STEP_TASKS_PER_NODE="2",
        SLURM_STEP_ID="3",
    )
    cluster = detect(environ)
    assert [host_of(address) for address in cluster.workers] == ["n1", "n1"]
    assert cluster.is_single_machine


def test_large_steps_in_short_notation():
    environ = step(
        9,
        4,
        1,
        SLURM_STEP_NODELIST="g[008-011],m1",
        SLURM_STEP_TASKS_PER_NODE="2(x5)",
        SLURM_STEP_NUM_TASKS="10",
    )
    hosts = [host_of(address) for address in detect(environ).workers]
    assert hosts == ["g008", "g008", "g009", "g009", "g010", "g010", "g011", "g011", "m1", "m1"]


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (step(4, 0, 0), ["SLURM_PROCID is 4", "0 to 3"]),
        (step("x", 0, 0), ["SLURM_PROCID is 'x'"]),
        (step(0, 0, 0, SLURM_JOB_ID=None), ["SLURM_JOB_ID is not set"]),
        (step(0, None, None, SLURM_NODEID=None), ["SLURM_NODEID is not set"]),
        (step(0, 0, 0, SLURM_STEP_NODELIST="n[0"), ["SLURM_STEP_NODELIST", "'n[0'"]),
        (step(0, 0, 0, SLURM_STEP_TASKS_PER_NODE="2(3)"), ["SLURM_STEP_TASKS_PER_NODE", "'2(3)'"]),
        (step(0, 0, 0, SLURM_STEP_TASKS_PER_NODE=None), ["SLURM_STEP_TASKS_PER_NODE is not set"]),
        (step(0, 0, 0, SLURM_STEP_TASKS_PER_NODE="3"), ["3 tasks on 1 hosts", "4 tasks and 2 hosts"]),
        (step(0, 2, 0), ["SLURM_NODEID is 2"]),
        (step(0, 1, 1), ["SLURM_LOCALID is 1"]),
        # Task 1 of the first node cannot be where block distribution puts it.
        (step(1, 1, 0), ["task 1 is task 0 of host 1", "--distribution=block"]),
        (step(0, 0, 0, SLURM_JOB_ID=None, SLURM_STEP_NODELIST="["), ["SLURM_JOB_ID", "SLURM_STEP_NODELIST"]),
    ],
)
def test_a_contradiction_is_named_with_its_value(environ, words):
    with pytest.raises(ConfigurationError) as error:
        detect(environ)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("counts", [[1], [3, 1], [1, 3], [2, 2, 2], [4, 1, 2]])
def test_distributions_place_every_task_once(counts):
    everywhere = {(node, place) for node, number in enumerate(counts) for place in range(number)}
    for places in (block(counts), cyclic(counts)):
        assert places[0] == (0, 0)
        assert len(places) == sum(counts)
        assert set(places) == everywhere
    assert block(counts) == sorted(block(counts))
    assert cyclic(counts) == sorted(cyclic(counts), key=lambda place: (place[1], place[0]))
