import pytest

from trireme.cluster.addresses import host_of, port_of
from trireme.cluster.mpi import detect
from trireme.errors import ConfigurationError


def open_mpi(rank, size, local_rank, local_size, **more):
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "PMIX_RANK": str(rank),
        **more,
    }


def version_4(*place, **more):
    """As Open MPI 4.1.4 sets them."""
    more = {
        "OMPI_MCA_ess_base_jobid": "1338900481",
        "OMPI_MCA_orte_hnp_uri": "1338900480.0;tcp://192.0.2.2,10.9.9.9:32873;tcp6://[fd00::2]:50403",
        "PMIX_NAMESPACE": "1338900481",
        **more,
    }
    return open_mpi(*place, **more)


def version_5(*place, **more):
    """As Open MPI 5.0.11 sets them: the namespace has the name of mpirun's host."""
    more = {
        "PMIX_NAMESPACE": "prterun-login-1-7690@1",
        "PMIX_SERVER_URI41": "prterun-login-1-7690@0.0;tcp4://127.0.0.1:1",
        **more,
    }
    return open_mpi(*place, **more)


def hydra(rank, size, local_rank, local_size, **more):
    """As MPICH 5.0.2 sets them."""
    environ = {
        "PMI_RANK": rank,
        "PMI_SIZE": size,
        "MPI_LOCALRANKID": local_rank,
        "MPI_LOCALNRANKS": local_size,
    }
    return {**{name: str(value) for name, value in environ.items()}, "PMI_FD": "11", **more}


# `srun --mpi=pmi2` sets both families alike.
SRUN_PMI2 = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "PMI_JOBID": "5.0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
}


@pytest.mark.parametrize("flavour", [version_4, version_5, hydra])
def test_all_on_one_machine(flavour):
    clusters = [detect(flavour(rank, 3, rank, 3)) for rank in range(3)]
    assert [cluster.rank for cluster in clusters] == [0, 1, 2]
    assert [cluster.local for cluster in clusters] == [(0, 3), (1, 3), (2, 3)]
    (workers,) = {cluster.workers for cluster in clusters}
    assert [host_of(address) for address in workers] == ["127.0.0.1"] * 3
    assert len({port_of(address) for address in workers}) == 3
    assert all(cluster.is_single_machine and cluster.source == "mpi" for cluster in clusters)


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        (version_4(2, 4, 0, 2), "192.0.2.2"),
        (
            version_4(2, 4, 0, 2, OMPI_MCA_orte_hnp_uri="1.0;tcp6://[fd00::2,fd00::3]:50403"),
            "[fd00::2]",
        ),
        (version_5(2, 4, 0, 2), "login-1"),
        # Inside a Slurm job rank 0 is on the first node, wherever mpirun was typed.
        (version_5(2, 4, 0, 2, SLURM_JOB_NODELIST="n[3-4]"), "n3"),
        (hydra(2, 4, 0, 2, SLURM_JOB_NODELIST="n[3-4]"), "n3"),
        # What the user passes on is right, whatever the rest says.
        (version_4(2, 4, 0, 2, MASTER_ADDR="boss"), "boss"),
        (hydra(2, 4, 0, 2, MASTER_ADDR="boss"), "boss"),
        (hydra(0, 2, 0, 2, MASTER_ADDR="boss"), "boss"),
    ],
)
def test_where_rank_0_is(environ, host):
    cluster = detect(environ)
    assert host_of(cluster.coordinator) == host
    assert cluster.local[1] == 2


def test_only_worker_0_is_known_on_several_machines():
    cluster = detect(version_4(3, 4, 1, 2))
    assert cluster.workers[1:] == ("?", "?", "?")
    assert (cluster.rank, cluster.local_rank, cluster.num_local_workers) == (3, 1, 2)
    assert not cluster.is_single_machine


def test_ports_follow_from_the_job_or_from_the_user():
    def port(environ):
        return port_of(detect(environ).coordinator)

    assert port(version_4(0, 2, 0, 2)) == port(version_4(1, 2, 1, 2))
    assert port(version_4(0, 2, 0, 2)) != port(version_4(0, 2, 0, 2, OMPI_MCA_ess_base_jobid="1338900482"))
    assert port(version_5(0, 2, 0, 2)) != port(version_5(0, 2, 0, 2, PMIX_NAMESPACE="prterun-login-1-77@1"))
    assert port(version_4(0, 2, 0, 2, MASTER_PORT="4000")) == 4000
    # MPICH gives its runs no name to derive a port from.
    assert port(hydra(0, 2, 0, 2)) == 29500


@pytest.mark.parametrize(
    "environ",
    [
        {},
        SRUN_PMI2,
        # `srun --mpi=pmix` tells the rank twice and the size only in Slurm's way.
        {
            "PMIX_RANK": "1",
            "PMIX_NAMESPACE": "slurm.pmix.5.0",
            "SLURM_PROCID": "1",
            "SLURM_STEP_NUM_TASKS": "2",
        },
        {"PMI_RANK": "0"},
        # mpi4py started alone.
        {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://h:1"},
    ],
)
def test_detects_nothing_where_mpirun_is_not_the_starter(environ):
    assert detect(environ) is None


def test_an_mpirun_whose_helpers_srun_started():
    # The helper of the second machine is task 0 of 1 for Slurm, and its child is rank 1 of 2.
    leftover = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_NODELIST": "n[0-1]"}
    assert detect(hydra(1, 2, 0, 1, **leftover)).rank == 1
    assert detect(version_4(1, 2, 0, 1, **leftover)).rank == 1


def test_one_process_needs_no_address():
    assert detect(hydra(0, 1, 0, 1)).num_workers == 1
    assert detect({"PMI_RANK": "0", "PMI_SIZE": "1"}).local == (0, 1)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (hydra(2, 4, 0, 2), ["PMI_SIZE is 4 on several machines", "mpirun -genv MASTER_ADDR"]),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ["PMI_SIZE is 2 on several machines"]),
        (hydra(4, 4, 0, 4), ["PMI_RANK is 4", "0 to 3"]),
        (version_4("x", 4, 0, 4), ["OMPI_COMM_WORLD_RANK is 'x'"]),
        (version_4(0, 4, 4, 4), ["OMPI_COMM_WORLD_LOCAL_RANK is 4"]),
        (version_4(0, 2, 0, 2, MASTER_PORT="http"), ["MASTER_PORT is 'http'"]),
        ({"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_SIZE is not set"]),
        # Another PMIx launcher than Open MPI's or Slurm's: training alone in each process would be wrong.
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}, ["PMIX_RANK is '1'", "how many processes"]),
    ],
)
def test_a_contradiction_is_named_with_its_value(environ, words):
    with pytest.raises(ConfigurationError) as error:
        detect(environ)
    for word in words:
        assert word in str(error.value)
