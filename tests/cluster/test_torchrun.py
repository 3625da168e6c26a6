import pytest

from trireme.cluster.addresses import host_of, port_of
from trireme.cluster.torchrun import detect
from trireme.errors import ConfigurationError


def torchrun(rank, size, local_rank, local_size, **changes):
    """As torchrun of PyTorch 2.13 sets them."""
    environ = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "39457",
        "TORCHELASTIC_RUN_ID": "818efd3e",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        **changes,
    }
    return {name: value for name, value in environ.items() if value is not None}


def by_hand(rank, size, **more):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "boss", "MASTER_PORT": "4000", **more}


def test_one_machine():
    clusters = [detect(torchrun(rank, 2, rank, 2)) for rank in range(2)]
    assert [cluster.rank for cluster in clusters] == [0, 1]
    (workers,) = {cluster.workers for cluster in clusters}
    assert [host_of(address) for address in workers] == ["localhost", "localhost"]
    assert port_of(workers[1]) == port_of(workers[0]) + 1
    # torchrun itself listens there.
    assert 39457 not in map(port_of, workers)
    assert clusters[1].local == (1, 2)
    assert clusters[1].run_id == "818efd3e"
    assert clusters[1].is_single_machine


def test_several_machines_know_worker_0_only():
    cluster = detect(torchrun(5, 8, 1, 4, MASTER_ADDR="n0"))
    assert host_of(cluster.coordinator) == "n0"
    assert cluster.workers[1:] == ("?",) * 7
    assert (cluster.rank, cluster.local_rank, cluster.num_local_workers) == (5, 1, 4)


def test_a_restarted_group_meets_at_another_port():
    first, again = (detect(torchrun(0, 2, 0, 2, TORCHELASTIC_RESTART_COUNT=count)) for count in "01")
    assert first.coordinator != again.coordinator


def test_set_by_hand_the_port_is_free_for_worker_0():
    cluster = detect(by_hand(1, 2))
    assert cluster.workers == ("boss:4000", "?")
    assert cluster.local is None
    assert cluster.source == "torchrun"
    assert detect(by_hand(1, 2, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")).workers == ("boss:4000", "boss:4001")


def test_ipv6():
    assert detect(by_hand(1, 2, MASTER_ADDR="fd00::1")).coordinator == "[fd00::1]:4000"


def test_one_process_needs_no_address():
    assert detect({"RANK": "0", "WORLD_SIZE": "1"}).num_workers == 1


@pytest.mark.parametrize("environ", [{}, {"RANK": "3"}, {"WORLD_SIZE": "3"}, {"LOCAL_RANK": "0"}])
def test_detects_nothing_without_rank_and_size(environ):
    assert detect(environ) is None


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (torchrun(2, 2, 0, 2), ["RANK is 2, but WORLD_SIZE is 2", "0 to 1"]),
        (torchrun(0, 2, 2, 2), ["LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2"]),
        (torchrun(0, 2, 0, 2, MASTER_ADDR=None), ["MASTER_ADDR is not set"]),
        (torchrun(0, 2, 0, 2, MASTER_PORT="0"), ["MASTER_PORT is '0'"]),
        (
            {"RANK": "a", "WORLD_SIZE": "b"},
            ["RANK is 'a'", "WORLD_SIZE is 'b'", "MASTER_ADDR", "MASTER_PORT"],
        ),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["unset RANK WORLD_SIZE"]),
        # More processes on this machine than there are in all.
        (torchrun(0, 2, 0, 3), ["local is (0, 3)"]),
    ],
)
def test_a_contradiction_is_named_with_its_value(environ, words):
    with pytest.raises(ConfigurationError) as error:
        detect(environ)
    for word in words:
        assert word in str(error.value)
