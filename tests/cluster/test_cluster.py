from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.cluster.cluster import ROLES, Cluster
from trireme.errors import ConfigurationError

hosts = st.one_of(
    st.from_regex(r"[a-z][a-z0-9-]{0,8}(\.[a-z]{1,4})?", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
)
known_addresses = st.builds(lambda host, port: f"{host}:{port}", hosts, st.integers(1, 65535))


@st.composite
def clusters(draw):
    """Any valid cluster: known, unknown and port-0 addresses, every role and place in it."""
    addresses = draw(st.lists(known_addresses, min_size=1, max_size=9, unique=True))
    num_servers = draw(st.integers(0, len(addresses) - 1))
    servers, workers = addresses[:num_servers], addresses[num_servers:]
    workers[1:] = [draw(st.sampled_from([address, "?", "h:0"])) for address in workers[1:]]
    evaluators = draw(st.lists(st.just("?"), max_size=2))
    role = draw(st.sampled_from([r for r, n in zip(ROLES, (workers, servers, evaluators), strict=True) if n]))
    rank = draw(
        st.integers(0, len({"worker": workers, "server": servers, "evaluator": evaluators}[role]) - 1)
    )
    local = draw(st.none() | st.integers(1, len(workers)).flatmap(_local))
    return Cluster(
        workers=tuple(workers),
        servers=tuple(servers),
        evaluators=tuple(evaluators),
        role=role,
        rank=rank,
        replicas_per_worker=draw(st.integers(1, 16)),
        run_id=draw(st.text(alphabet=st.characters(codec="utf-8"), max_size=9).filter(_is_run_id)),
        local=local,
    )


def _local(count):
    return st.tuples(st.integers(0, count - 1), st.just(count))


def _is_run_id(text):
    return text.isprintable() and " " not in text


@given(clusters())
def test_environment_round_trip(cluster):
    environ = cluster.to_environ()
    assert all(isinstance(value, str) and "\0" not in value for value in environ.values())
    assert Cluster.from_environ(environ) == cluster


@given(clusters(), clusters())
def test_equal_environments_mean_equal_clusters(first, second):
    assert (first.to_environ() == second.to_environ()) == (first == second)


@given(clusters())
def test_local_ranks_count_the_workers_of_a_machine(cluster):
    if cluster.role == "worker":
        assert 0 <= cluster.local_rank < cluster.num_local_workers <= cluster.num_workers
    assert cluster.num_replicas == cluster.num_workers * cluster.replicas_per_worker
    assert f"{cluster.role} {cluster.rank} of" in repr(cluster)
    assert "\n" not in repr(cluster) + cluster.describe()


def test_default_is_one_worker_on_this_machine():
    cluster = Cluster()
    assert (cluster.num_workers, cluster.num_replicas, cluster.rank) == (1, 1, 0)
    assert (cluster.local_rank, cluster.num_local_workers) == (0, 1)
    assert cluster.is_chief
    assert cluster.is_single_machine


def test_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Cluster().rank = 1


def test_source_is_no_part_of_equality():
    assert Cluster(source="slurm") == Cluster(source="mpi")


MIXED = ("a:1", "b:1", "a:2", "b:2", "a:3")


@pytest.mark.parametrize(
    ("rank", "local_rank", "num_local_workers"),
    [(0, 0, 3), (1, 0, 2), (2, 1, 3), (3, 1, 2), (4, 2, 3)],
)
def test_local_rank_follows_the_rank_order_among_equal_hosts(rank, local_rank, num_local_workers):
    cluster = Cluster(workers=MIXED, rank=rank)
    assert (cluster.local_rank, cluster.num_local_workers) == (local_rank, num_local_workers)
    assert not cluster.is_single_machine


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (Cluster(workers=("a:1", "a:2")), True),
        (Cluster(workers=("a:1", "b:2")), False),
        # One worker is on one machine, wherever that is.
        (Cluster(workers=("?",)), True),
        # Unknown hosts may be anywhere, unless the environment told how many are here.
        (Cluster(workers=("a:1", "?")), False),
        (Cluster(workers=("a:1", "?"), local=(0, 2)), True),
        (Cluster(workers=("a:1", "?"), local=(0, 1)), False),
        # A server's own address says nothing about the workers.
        (Cluster(workers=("a:1", "a:2"), servers=("b:1",), role="server"), True),
        (Cluster(workers=("a:1", "b:2"), servers=("a:3",), role="server"), False),
    ],
)
def test_is_single_machine(cluster, expected):
    assert cluster.is_single_machine is expected


def test_what_the_environment_told_comes_before_what_the_hosts_look_like():
    cluster = Cluster(workers=("a:1", "?", "?", "?"), rank=3, local=(1, 2))
    assert (cluster.local_rank, cluster.num_local_workers) == (1, 2)


def test_servers_and_evaluators_are_no_chiefs():
    cluster = Cluster(workers=("a:1", "b:1"), servers=("a:2", "a:3", "b:2"), evaluators=("?",))
    assert cluster.at(0).is_chief
    assert not cluster.at(1).is_chief
    assert not cluster.at(0, "server").is_chief
    assert not cluster.at(0, "evaluator").is_chief
    assert cluster.at(1, "server").local_rank == 1
    assert cluster.at(1, "server").num_local_workers == 1
    assert cluster.at(0, "evaluator").num_local_workers == 0


def test_at_forgets_the_local_place_of_another_process():
    cluster = Cluster(workers=("a:1", "?", "?", "?"), rank=3, local=(1, 2))
    assert cluster.at(3).local == (1, 2)
    assert cluster.at(2).local is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"workers": ()}, ["at least one"]),
        ({"workers": ("a:1", "b")}, ["workers[1] is 'b'", "host:port"]),
        ({"workers": ("?", "b:1")}, ["worker 0 is unknown"]),
        ({"workers": ("a:1", "a:1")}, ["a:1 appears more than once"]),
        # A worker and a server on one port collide as well.
        ({"servers": ("a:1",), "workers": ("a:1",)}, ["a:1 appears more than once"]),
        ({"servers": ("?",)}, ["servers[0] is '?'"]),
        ({"role": "ps"}, ["role is 'ps'", "worker, server, evaluator"]),
        ({"rank": 1}, ["rank is 1 among 1 worker: expected 0"]),
        ({"rank": 2, "workers": ("a:1", "b:1")}, ["rank is 2 among 2 workers: expected 0 to 1"]),
        ({"rank": -1}, ["rank is -1"]),
        ({"rank": True}, ["rank is True"]),
        ({"rank": "0"}, ["rank is '0'"]),
        ({"role": "server"}, ["server 0", "has no servers"]),
        ({"replicas_per_worker": 0}, ["replicas_per_worker is 0"]),
        ({"run_id": "a b"}, ["run_id is 'a b'"]),
        ({"run_id": "a\nb"}, ["run_id is 'a\\nb'"]),
        ({"local": (1, 1)}, ["local is (1, 1)"]),
        ({"local": (0, 2)}, ["local is (0, 2)", "at most 1 worker"]),
        ({"local": 0}, ["local is 0"]),
    ],
)
def test_a_contradiction_is_named_with_its_value(values, words):
    with pytest.raises(ConfigurationError) as error:
        Cluster(**values)
    for word in words:
        assert word in str(error.value)
    assert error.value.exit_code == 78


def test_all_contradictions_are_told_at_once():
    with pytest.raises(ConfigurationError) as error:
        Cluster(workers=("a", "b:1", "b:1"), role="boss", replicas_per_worker=0, run_id=" ", local=(9, 9))
    for word in ("workers[0]", "b:1", "'boss'", "replicas_per_worker", "run_id", "local"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"TRIREME_WORKERS": None}, ["TRIREME_WORKERS is not set"]),
        ({"TRIREME_RANK": None}, ["TRIREME_RANK is not set"]),
        ({"TRIREME_RANK": "one"}, ["TRIREME_RANK='one'"]),
        ({"TRIREME_RANK": "7"}, ["rank is 7 among 2 workers"]),
        ({"TRIREME_WORKERS": ""}, ["at least one"]),
        ({"TRIREME_WORKERS": "a:1,,b:1"}, ["workers[1] is ''"]),
        ({"TRIREME_LOCAL_RANK": "0"}, ["TRIREME_NUM_LOCAL_WORKERS", "only one is set"]),
        ({"TRIREME_REPLICAS_PER_WORKER": "x", "TRIREME_RANK": "y"}, ["'x'", "'y'"]),
    ],
)
def test_from_environ_names_the_variable(changes, words):
    environ = {**Cluster(workers=("a:1", "b:1")).to_environ(), **changes}
    with pytest.raises(ConfigurationError) as error:
        Cluster.from_environ({name: value for name, value in environ.items() if value is not None})
    for word in words:
        assert word in str(error.value)


def test_from_environ_takes_what_a_person_writes():
    environ = {
        "TRIREME_WORKERS": "a:1, b:1",
        "TRIREME_SERVERS": " c:1 ",
        "TRIREME_ROLE": "ps",
        "TRIREME_RANK": "0",
    }
    expected = Cluster(workers=("a:1", "b:1"), servers=("c:1",), role="server")
    assert Cluster.from_environ(environ) == expected
    assert Cluster.from_environ(environ).source == "trireme"


def test_a_thousand_workers_are_still_one_short_line():
    cluster = Cluster(workers=tuple(f"n{index}:1" for index in range(1000)), rank=7)
    assert len(repr(cluster)) < 120
    assert "n0:1,n1:1,(997 more),n999:1" in repr(cluster)


def test_describe_is_for_people():
    cluster = Cluster(
        workers=("a:1", "b:1"), servers=("c:1",), replicas_per_worker=4, run_id="r7", source="TF_CONFIG"
    )
    assert cluster.describe() == (
        "worker 0 of 2 (the chief), 8 replicas (4 per worker), 1 server, worker 0 at a:1, run r7, "
        "from TF_CONFIG"
    )
    assert replace(cluster, role="server", replicas_per_worker=1, run_id="").describe() == (
        "server 0 of 1, 2 workers, worker 0 at a:1, from TF_CONFIG"
    )
    assert Cluster().describe() == "worker 0 of 1, by default"
