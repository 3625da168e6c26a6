import pytest

from trireme.cluster.cluster import Cluster
from trireme.cluster.trireme_environ import detect
from trireme.errors import ConfigurationError


def test_detects_what_a_cluster_wrote():
    cluster = Cluster(workers=("a:1", "b:1"), servers=("c:1",), rank=1, run_id="r")
    assert detect({**cluster.to_environ(), "PATH": "/bin"}) == cluster


@pytest.mark.parametrize(
    "environ",
    [
        {},
        # A pod has a role and a run, but its place follows from other variables.
        {"TRIREME_ROLE": "worker", "TRIREME_RUN_ID": "r", "TRIREME_CLUSTER": "{}"},
    ],
)
def test_detects_nothing_where_no_workers_are_named(environ):
    assert detect(environ) is None


def test_a_rank_among_nobody_is_a_mistake():
    with pytest.raises(ConfigurationError, match="TRIREME_RANK='3' is set, but TRIREME_WORKERS is not"):
        detect({"TRIREME_RANK": "3"})
