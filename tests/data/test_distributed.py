import pytest

from trireme.cluster.cluster import Cluster
from trireme.data import DistributedDataset, InputContext, distribute_from_function
from trireme.errors import UsageError


@pytest.mark.parametrize(
    ("workers", "rank", "replicas_per_worker", "context"),
    [
        (3, 1, 1, InputContext(3, 1, 3)),
        (2, 0, 4, InputContext(2, 0, 8)),
        (1, 0, 2, InputContext(1, 0, 2)),
    ],
)
def test_the_function_learns_which_input_is_the_workers(workers, rank, replicas_per_worker, context):
    addresses = tuple(f"host:{port}" for port in range(1, workers + 1))
    cluster = Cluster(workers=addresses, rank=rank, replicas_per_worker=replicas_per_worker)
    result = distribute_from_function(lambda given: [given], cluster)
    assert isinstance(result, DistributedDataset)
    assert result.own == [context]


def test_one_replica_gets_what_plain_keras_takes():
    assert distribute_from_function(lambda context: [context], Cluster()) == [InputContext(1, 0, 1)]


def test_a_global_batch_divides_among_the_replicas():
    assert InputContext(2, 0, 4).get_per_replica_batch_size(12) == 3


def test_a_batch_size_that_does_not_divide_is_refused_with_those_that_do():
    with pytest.raises(UsageError, match=r"batch size 10 does not divide by 4 replicas\. Take 8 or 12"):
        InputContext(2, 0, 4).get_per_replica_batch_size(10)
    with pytest.raises(UsageError, match=r"Take 4\."):
        InputContext(2, 0, 4).get_per_replica_batch_size(3)
