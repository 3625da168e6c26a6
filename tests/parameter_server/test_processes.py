"""What happens to real processes: killed, stopped, started again."""

import json
import signal

import numpy as np
import pytest

from tests.parameter_server.processes import (
    GRADIENTS,
    INITIAL,
    placement_on,
    processes,
    reserved_address,
    server_options,
)
from tests.parameter_server.server_process import RUN_ID
from trireme.errors import EXIT_TERMINATED, ConfigurationError, PeerTimeout
from trireme.parameter_server import Client, Deadlines, Over, make_keys

QUICK = Deadlines(server_s=30.0, peers_s=60.0, heartbeat_s=0.1)


@pytest.fixture
def start():
    with processes() as start:
        yield start


def client_of(addresses, worker=0, deadlines=QUICK, keys=None):
    return Client(
        addresses, worker, placement_on(len(addresses)), run_id=RUN_ID, deadlines=deadlines, keys=keys
    )


def test_a_run_from_begin_to_end(start):
    servers, workers = make_keys()
    up = [
        start("server_process", server_options(i, 2, rules={"max_staleness": 0}), servers.to_environ())
        for i in (0, 1)
    ]
    addresses = [server.line() for server in up]
    jobs = [
        start("worker_process", {"servers": addresses, "worker": i, "num_steps": 20}, workers.to_environ())
        for i in (0, 1)
    ]
    for job in jobs:
        code, output, errors = job.wait()
        assert (code, output.splitlines()[-1]) == (0, "20 -20.0"), errors
    for server in up:
        code, output, errors = server.wait()
        assert (code, json.loads(output.splitlines()[-1])) == (0, {"num_steps": 20}), errors


def test_a_killed_worker_is_started_again_and_joins(start):
    rules = {"max_staleness": 0, "worker_timeout_s": 120}
    up = [start("server_process", server_options(i, 2, rules=rules)) for i in (0, 1)]
    addresses = [server.line() for server in up]
    with client_of(addresses) as client:
        client.create(INITIAL)
        options = {"servers": addresses, "worker": 1, "num_steps": 30}
        other = start("worker_process", options)
        assert other.line() == "begins at 0"
        for step in range(10):
            client.push(GRADIENTS)
            client.pull()
            assert other.line().startswith(f"{step + 1} ")
        other.send(signal.SIGKILL)
        other.wait()
        client.push(GRADIENTS)
        pending = client.start_pull()
        again = start("worker_process", options)
        begins_at = int(again.line().removeprefix("begins at "))
        assert begins_at in (10, 11), "it had pushed step 10, or not"
        assert pending.result()["b"] == -11
        while client.step < 30:
            client.push(GRADIENTS)
            assert client.pull()["b"] == -client.step
        code, output, errors = again.wait()
        assert (code, output.splitlines()[-1]) == (0, "30 -30.0"), errors
    assert [server.wait()[0] for server in up] == [0, 0]


def test_a_killed_server_is_started_again_and_the_workers_go_on(start, tmp_path, caplog):
    kept = [reserved_address() for _ in range(2)]
    addresses = [address for address, _ in kept]
    options = [server_options(i, address=addresses[i], directory=str(tmp_path)) for i in range(2)]
    up = [start("server_process", option) for option in options]
    assert [server.line() for server in up] == addresses
    with client_of(addresses) as client:
        client.create(INITIAL)
        for step in range(6):
            client.push(GRADIENTS)
            client.pull()
            if step == 3:
                client.take_snapshot()
        up[1].send(signal.SIGKILL)
        up[1].wait()
        client.push(GRADIENTS)
        pending = client.start_pull()
        back = start("server_process", options[1])
        assert back.line() == addresses[1]
        placement = placement_on(2)
        weights = pending.result()
        for name in ("w", "b"):
            for piece, part in placement.split(name, weights[name]):
                expected = -7 if placement.server_of[piece.name] == 0 else -5
                assert np.all(part == expected), piece.name
        assert client.statistics.lost_updates == 2
        assert f"server 1 at {addresses[1]} came back and lost 2 updates of worker 0" in caplog.text
        client.push(GRADIENTS)
    assert up[0].wait()[0] == 0
    assert json.loads(back.wait()[1].splitlines()[-1]) == {"num_steps": 6}
    for _, keeper in kept:
        keeper.close()


def test_rows_of_a_killed_worker_are_worked_on_by_others(start):
    server = start("server_process", server_options(0, 2, rules={"worker_timeout_s": 3.0}))
    address = server.line()
    lost = client_of([address], 1)
    lost.connect()
    taken = lost.next_range(0, 100, 10)
    lost.close()
    with client_of([address]) as client:
        counted = np.zeros(100, int)
        while not isinstance(rows := client.next_range(0, 100, 10), Over):
            counted[rows.start : rows.stop] += 1
            assert client.range_done(rows, {"rows": rows.num_rows})
        assert (counted == 1).all()
        assert counted[taken.start]
        assert float(rows.totals["rows"]) == 100
    assert server.wait()[0] == 0


def test_a_stopped_server_ends_the_wait_with_its_name(start):
    up = [start("server_process", server_options(i)) for i in (0, 1)]
    addresses = [server.line() for server in up]
    client = client_of(addresses, deadlines=Deadlines(server_s=3.0, peers_s=60.0, heartbeat_s=0.1))
    client.connect()
    client.create(INITIAL)
    up[1].send(signal.SIGSTOP)
    with pytest.raises(
        PeerTimeout, match=f"parameter server 1 at {addresses[1]} was silent for 3.* while worker 0"
    ):
        client.pull()
    client.close()
    up[1].send(signal.SIGCONT)


def test_a_worker_that_computes_for_long_is_not_lost(start):
    server = start(
        "server_process", server_options(0, 2, rules={"max_staleness": 1, "worker_timeout_s": 2.0})
    )
    address = server.line()
    with client_of([address]) as waiting, client_of([address], 1) as busy:
        waiting.create(INITIAL)
        waiting.push(GRADIENTS)
        waiting.push(GRADIENTS)
        pending = waiting.start_pull()
        with pytest.raises(PeerTimeout, match="waits for worker 1"):
            # More than twice the time after which a silent worker is lost; the busy one's heart beats meanwhile.
            waiting._session._deadlines = Deadlines(server_s=30.0, peers_s=5.0, heartbeat_s=0.1)
            pending.result()
        busy.push(GRADIENTS)
        assert pending.result()["b"] == -3


def test_sigterm_saves_and_ends(start, tmp_path):
    server = start("server_process", server_options(0, directory=str(tmp_path)))
    client = client_of([server.line()])
    client.connect()
    client.create(INITIAL)
    client.push(GRADIENTS)
    client.flush()
    client.close()
    server.send(signal.SIGTERM)
    code, _, errors = server.wait()
    assert code == EXIT_TERMINATED, errors
    again = start("server_process", server_options(0, directory=str(tmp_path)))
    client = client_of([again.line()])
    client.connect()
    assert client.pull()["b"] == -1
    client.finish()
    assert again.wait()[0] == 0


def test_an_address_that_is_taken(start):
    server = start("server_process", server_options(0))
    second = start("server_process", server_options(0, address=server.line()))
    code, _, errors = second.wait()
    assert code != 0
    assert "ConfigurationError: a parameter server cannot listen on" in errors
    assert "Address already in use" in errors


def test_without_keys_only_loopback(start):
    code, _, errors = start("server_process", server_options(0, address="0.0.0.0:0")).wait()
    assert code != 0
    assert "ConfigurationError: a parameter server without keys must not listen on 0.0.0.0:0" in errors


def test_wrong_keys_are_a_silent_server(start):
    server = start("server_process", server_options(0), make_keys()[0].to_environ())
    address = server.line()
    client = client_of([address], deadlines=Deadlines(1.0, 1.0, 0.1), keys=make_keys()[1])
    with pytest.raises(PeerTimeout, match=f"{address} was silent .* does it have the same keys"):
        client.connect()
    client.close()


def test_another_run_is_turned_away(start):
    server = start("server_process", server_options(0))
    client = Client([server.line()], 0, placement_on(1), run_id="other", deadlines=QUICK)
    with pytest.raises(ConfigurationError, match="belongs to run 'test-run', the worker to run 'other'"):
        client.connect()
    client.close()
