import pytest

from trireme.cluster.cluster import Cluster
from trireme.cluster.kubeflow import detect
from trireme.errors import ConfigurationError

COORDINATOR = "train-node-0-0.train:29500"


def jax(rank, size, **changes):
    environ = {
        "JAX_PROCESS_ID": str(rank),
        "JAX_NUM_PROCESSES": str(size),
        "JAX_COORDINATOR_ADDRESS": COORDINATOR,
        **changes,
    }
    return {name: value for name, value in environ.items() if value is not None}


def torch(rank, size, **changes):
    environ = {
        "PET_NODE_RANK": str(rank),
        "PET_NNODES": str(size),
        "PET_NPROC_PER_NODE": "auto",
        "PET_MASTER_ADDR": "train-node-0-0.train",
        "PET_MASTER_PORT": "29500",
        **changes,
    }
    return {name: value for name, value in environ.items() if value is not None}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        (jax(1, 3), Cluster(workers=(COORDINATOR, "?", "?"), rank=1)),
        (jax(0, 1), Cluster(workers=(COORDINATOR,))),
        (torch(1, 3), Cluster(workers=(COORDINATOR, "?", "?"), rank=1)),
        (torch(0, 1), Cluster(workers=(COORDINATOR,))),
        (torch(0, 1, PET_MASTER_ADDR=None, PET_MASTER_PORT=None), Cluster()),
        # JAX reads its coordinator's address alone as well, from whoever set it.
        ({"JAX_COORDINATOR_ADDRESS": "h:1"}, None),
        ({"PET_NNODES": "2"}, None),
    ],
)
def test_detect(environ, expected):
    cluster = detect(environ)
    assert cluster == expected
    assert cluster is None or cluster.source == "kubeflow"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (jax(3, 3), ["JAX_PROCESS_ID is 3", "0 to 2"]),
        (jax(0, 2, JAX_COORDINATOR_ADDRESS="boss"), ["JAX_COORDINATOR_ADDRESS is 'boss'", "host:port"]),
        (jax(0, 2, JAX_COORDINATOR_ADDRESS=None), ["JAX_COORDINATOR_ADDRESS is not set", "Set all of"]),
        (jax(0, 2, JAX_PROCESS_ID=None), ["JAX_PROCESS_ID is not set"]),
        (torch(2, 2), ["PET_NODE_RANK is 2"]),
        (
            torch(0, 2, PET_MASTER_ADDR=None, PET_MASTER_PORT="x"),
            ["PET_MASTER_ADDR", "PET_MASTER_PORT is 'x'"],
        ),
        (torch(0, "1:4"), ["PET_NNODES is '1:4'", "a range"]),
    ],
)
def test_a_contradiction_is_named_with_its_value(environ, words):
    with pytest.raises(ConfigurationError) as error:
        detect(environ)
    for word in words:
        assert word in str(error.value)
