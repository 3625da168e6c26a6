import json

import pytest

from trireme.cluster.cluster import Cluster
from trireme.cluster.kubernetes import detect
from trireme.errors import ConfigurationError

WORKERS = {"replicas": 3, "host": "train-{index}.train", "port": 29500}
SERVERS = {"replicas": 2, "host": "train-server-{index}.train", "port": 2222}


def pod(spec, index, role="worker", **more):
    text = spec if isinstance(spec, str) else json.dumps(spec)
    environ = {"TRIREME_CLUSTER": text, "JOB_COMPLETION_INDEX": index, "TRIREME_ROLE": role, **more}
    return {name: value for name, value in environ.items() if value is not None}


THREE = ("train-0.train:29500", "train-1.train:29500", "train-2.train:29500")
TWO_SERVERS = ("train-server-0.train:2222", "train-server-1.train:2222")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        # Any Indexed Job has an index.
        ({"JOB_COMPLETION_INDEX": "1"}, None),
        (pod({"worker": WORKERS}, "2", TRIREME_RUN_ID="r7"), Cluster(workers=THREE, rank=2, run_id="r7")),
        (pod({"worker": WORKERS}, "0", role=None), Cluster(workers=THREE)),
        (
            pod({"worker": WORKERS, "server": SERVERS}, "1", "server"),
            Cluster(workers=THREE, servers=TWO_SERVERS, role="server", rank=1),
        ),
        # As tf.distribute calls servers.
        (
            pod({"worker": WORKERS, "ps": SERVERS}, "1", "ps"),
            Cluster(workers=THREE, servers=TWO_SERVERS, role="server", rank=1),
        ),
        # A JobSet's pods have two numbers in their names.
        (
            pod({"worker": {"replicas": 2, "host": "train-worker-0-{index}.train", "port": 1}}, "1"),
            Cluster(workers=("train-worker-0-0.train:1", "train-worker-0-1.train:1"), rank=1),
        ),
        # Two GPUs in each pod: the second pod's first worker is rank 2.
        (
            pod({"worker": {**WORKERS, "replicas": 2, "workers_per_pod": 2}}, "1"),
            Cluster(
                workers=(
                    "train-0.train:29500",
                    "train-0.train:29501",
                    "train-1.train:29500",
                    "train-1.train:29501",
                ),
                rank=2,
            ),
        ),
        (
            pod({"worker": WORKERS}, "1", TRIREME_REPLICAS_PER_WORKER="4"),
            Cluster(workers=THREE, rank=1, replicas_per_worker=4),
        ),
        (
            pod({"worker": {"replicas": 1, "host": "only", "port": 1}}, "0"),
            Cluster(workers=("only:1",)),
        ),
    ],
)
def test_detect(environ, expected):
    cluster = detect(environ)
    assert cluster == expected
    if cluster is not None:
        assert cluster.source == "kubernetes"
        assert cluster.local_rank == 0


def test_a_pod_of_several_workers_holds_them_all():
    cluster = detect(pod({"worker": {**WORKERS, "workers_per_pod": 4}}, "1"))
    assert (cluster.rank, cluster.num_local_workers, cluster.num_workers) == (4, 4, 12)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (pod("{", "0"), ["TRIREME_CLUSTER is no JSON"]),
        (pod("[]", "0"), ["TRIREME_CLUSTER is []"]),
        (pod({"boss": WORKERS, "worker": WORKERS}, "0"), ["'boss'", "worker, server"]),
        (pod({"server": SERVERS}, "0", "server"), ['no "worker"']),
        (pod({"worker": 3}, "0"), ["TRIREME_CLUSTER.worker is 3"]),
        (pod({"worker": {**WORKERS, "replicas": 0}}, "0"), ["replicas 0"]),
        (pod({"worker": {**WORKERS, "replicas": True}}, "0"), ["replicas true"]),
        (pod({"worker": {**WORKERS, "port": "29500"}}, "0"), ['port "29500"']),
        (pod({"worker": {**WORKERS, "workers_per_pod": 0}}, "0"), ["workers_per_pod 0"]),
        (pod({"worker": {**WORKERS, "host": "train.train"}}, "0"), ['"train.train"', "{index}"]),
        (pod({"worker": {**WORKERS, "hots": "x"}}, "0"), ["unknown setting 'hots'"]),
        (pod({"worker": {}}, "0"), ["replicas null", "port null", "host null"]),
        (pod({"worker": WORKERS}, "3"), ["JOB_COMPLETION_INDEX is 3", "3 pods"]),
        (pod({"worker": WORKERS}, None), ["JOB_COMPLETION_INDEX is not set"]),
        (pod({"worker": WORKERS}, "0", "server"), ["TRIREME_ROLE is server", "only worker"]),
        (pod({"worker": WORKERS}, "0", "boss"), ["TRIREME_ROLE is 'boss'"]),
        (pod({"worker": WORKERS}, "x", "boss"), ["TRIREME_ROLE is 'boss'", "JOB_COMPLETION_INDEX is 'x'"]),
    ],
)
def test_a_contradiction_is_named_with_its_value(environ, words):
    with pytest.raises(ConfigurationError) as error:
        detect(environ)
    for word in words:
        assert word in str(error.value)
