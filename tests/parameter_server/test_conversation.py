"""Clients and servers over a network in memory that loses, repeats and delays."""

import json
import random

import numpy as np
import pytest

from trireme.errors import ConfigurationError, PeerLost, PeerTimeout, UsageError
from trireme.parameter_server import (
    Client,
    FixedShardsPartitioner,
    Over,
    Range,
    RowGradient,
    Rules,
    Saver,
    VariableSpec,
    place,
)
from trireme.parameter_server.message_codec import encode_answer
from trireme.parameter_server.messages import Answer, Welcome

VARIABLES = [
    VariableSpec("w", (4, 2)),
    VariableSpec("b", ()),
    VariableSpec("t", (10, 3), initializer={"constant": 1}),
]
PLACEMENT = place(VARIABLES, 2, FixedShardsPartitioner(2))
INITIAL = {"w": np.zeros((4, 2), np.float32), "b": np.float32(0).reshape(())}
GRADIENTS = {"w": np.ones((4, 2), np.float32), "b": np.float32(1).reshape(())}


def rules(index, num_workers=1, **others):
    return Rules(num_workers, run_id="run", is_chief=index == 0, **others)


def start(network, num_workers=1, savers=(None, None), **others):
    for index in range(2):
        network.start_server(index, rules(index, num_workers, **others), savers[index])


def connected(network, num_workers=1):
    clients = [network.client(worker, PLACEMENT) for worker in range(num_workers)]
    for client in clients:
        client.connect()
    clients[0].create(INITIAL, {"learning_rate": 0.5})
    return clients


def test_push_and_pull(network):
    start(network)
    (client,) = connected(network)
    rows = RowGradient(np.array([9, 2, 9]), np.full((3, 3), 2, np.float32))
    client.push({**GRADIENTS, "t": rows}, weight=7)
    weights = client.pull(rows={"t": np.array([[0, 9], [2, 2]])})
    assert weights["w"].tolist() == [[-0.5, -0.5]] * 4
    assert weights["b"].tolist() == -0.5
    assert weights["t"].tolist() == [[[1] * 3, [-1] * 3], [[0] * 3, [0] * 3]]
    assert client.statistics.applied == 2  # one push, two servers
    assert {piece.name for piece in PLACEMENT.by_server[0]}.isdisjoint(network.updaters[1].values)


def test_pulling_no_rows_and_some_variables(network):
    start(network)
    (client,) = connected(network)
    weights = client.pull(rows={"t": np.zeros((0,), int)}, variables=["b"])
    assert weights.keys() == {"b", "t"}
    assert weights["t"].shape == (0, 3)
    assert client.pull()["t"].shape == (10, 3)


def test_a_pull_under_way_while_the_worker_goes_on(network):
    start(network)
    (client,) = connected(network)
    client.push(GRADIENTS)
    pending = client.start_pull()
    client.push(GRADIENTS)
    assert pending.result()["b"] == -0.5
    assert pending.result() is pending.result()
    assert client.pull()["b"] == -1.0
    assert client.statistics.staleness_max == 1


def test_new_settings_reach_all_servers(network):
    start(network)
    (client,) = connected(network)
    client.configure({"learning_rate": 0.125})
    assert {updater.learning_rate for updater in network.updaters.values()} == {0.125}


def test_other_values_reach_all_servers_and_are_no_update(network):
    start(network)
    (client,) = connected(network)
    client.push(GRADIENTS)
    client.pull()
    client.assign({"w": np.arange(8, dtype=np.float64).reshape(4, 2)})
    weights = client.pull()
    assert weights["w"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert weights["w"].dtype == np.float32
    assert weights["b"] == -0.5
    assert client.num_updates == 1


@pytest.mark.parametrize("values", [{"w": np.zeros(4, np.float32)}, {"b": np.zeros(1, np.float32)}])
def test_other_values_of_another_shape_are_an_error(network, values):
    start(network)
    (client,) = connected(network)
    with pytest.raises(UsageError, match="needs a value of shape"):
        client.assign(values)


def test_lock_step_over_two_servers(network):
    start(network, num_workers=3, max_staleness=0)
    clients = connected(network, 3)
    weights = np.zeros((4, 2))
    for step in range(4):
        for worker, client in enumerate(clients):
            client.push({"w": np.full((4, 2), worker + step, np.float32)}, weight=worker)
        pulls = [client.start_pull() for client in clients]
        weights -= 0.5 * (0 * (0 + step) + 1 * (1 + step) + 2 * (2 + step)) / 3
        for pull in pulls:
            np.testing.assert_allclose(pull.result()["w"], weights, rtol=1e-6)
    assert all(client.statistics.staleness_max == 0 for client in clients)


def play_epoch(clients, epoch, num_rows, batch_rows):
    """Each in turn; what everybody was told at the end, and how often each row was worked on."""
    counted = np.zeros(num_rows, int)
    over = {}
    while len(over) < len(clients):
        for worker, client in enumerate(clients):
            if worker in over:
                continue
            # The last one must not wait for rows that others hold: here nobody holds any between turns.
            rows = client.next_range(epoch, num_rows, batch_rows)
            if isinstance(rows, Over):
                over[worker] = rows
                continue
            for _ in range(0, rows.num_rows, batch_rows):
                client.push(GRADIENTS, epoch=epoch)
            counted[rows.start : rows.stop] += 1
            assert client.range_done(rows, {"rows": rows.num_rows})
    return over, counted


def test_epochs_are_shared_out(network):
    start(network, num_workers=2)
    clients = connected(network, 2)
    for epoch in range(3):
        over, counted = play_epoch(clients, epoch, 100, 8)
        assert (counted == 1).all()
        assert all(float(one.totals["rows"]) == 100 for one in over.values())
    assert clients[0].step == clients[1].step, "everybody goes on at the same step"


def test_a_lost_workers_rows_come_back_and_its_late_words_count_nothing(network):
    start(network, num_workers=2, max_staleness=0, worker_timeout_s=5)
    first, second = connected(network, 2)
    taken = first.next_range(0, 64, 8)
    network.beating.remove(first)
    counted = np.zeros(64, int)
    while isinstance(rows := second.next_range(0, 64, 8), Range):  # waits until worker 0 is lost
        second.push(GRADIENTS)
        second.pull()
        counted[rows.start : rows.stop] += 1
        assert second.range_done(rows, {"rows": rows.num_rows})
    assert (counted == 1).all()
    assert float(rows.totals["rows"]) == 64
    assert network.servers[0].state.statistics.workers_lost == 1
    assert not first.range_done(taken, {"rows": taken.num_rows})
    assert first.statistics.ranges_not_counted == 1
    assert float(first.next_range(0, 64, 8).totals["rows"]) == 64
    assert first.step == second.step


def test_a_silent_server_is_named(network):
    start(network)
    (client,) = connected(network)
    network.paused = {1}
    with pytest.raises(
        PeerTimeout, match=r"parameter server 1 at beta:2 was silent for 20.\d s while worker 0"
    ):
        client.pull()


def test_a_paused_server_that_goes_on_in_time(network):
    start(network)
    (client,) = connected(network)
    network.paused = {1}
    client.push(GRADIENTS)
    pending = client.start_pull()
    for _ in range(300):
        client._session.pump(0.05)
    network.paused = set()
    assert pending.result()["b"] == -0.5


def test_a_server_that_hears_nobody_ends_if_it_was_told_to(network):
    start(network)
    server = network.servers[0]
    network.now_s += 1000
    assert server.turn(0.0) and not server.is_abandoned
    server.absence_s = 1001.0
    (client,) = connected(network)
    client.pull()
    network.now_s += 1000
    assert server.turn(0.0)
    # A sign of life counts, whatever it says.
    client._session.pump(0.0)
    network.now_s += 1000
    assert server.turn(0.0)
    network.now_s += 2
    assert not server.turn(0.0) and server.is_abandoned


def test_the_workers_waited_for_are_named(network):
    start(network, num_workers=3, max_staleness=1, worker_timeout_s=1e9)
    clients = connected(network, 3)
    for _ in range(2):
        clients[0].push(GRADIENTS)
    clients[1].push(GRADIENTS)
    with pytest.raises(
        PeerTimeout, match=r"waited 100.\d s for weights from parameter server 0 .* worker 2\."
    ):
        clients[0].pull()


def test_a_killed_server_comes_back_and_the_loss_is_reported(network, tmp_path, caplog):
    savers = [Saver(tmp_path, "run", index, clock=network.clock) for index in range(2)]
    start(network, savers=savers)
    (client,) = connected(network)
    for step in range(5):
        client.push(GRADIENTS)
        client.pull()
        if step == 1:
            client.take_snapshot()
    network.kill_server(1)
    client.push(GRADIENTS)
    pending = client.start_pull()
    client._session.pump(3.0)
    network.start_server(1, rules(1), Saver(tmp_path, "run", 1, clock=network.clock))
    pending.result()
    assert "server 1 at beta:2 came back and lost 3 updates of worker 0" in caplog.text
    assert client.statistics.lost_updates == 3
    assert (network.updaters[0].num_steps, network.updaters[1].num_steps) == (6, 3)
    assert network.updaters[1].learning_rate == 0.5
    client.finish()
    assert not any(server.turn(0.0) for server in network.servers.values())


def test_what_the_chief_has_set_outlives_a_server(network, tmp_path):
    """Although no update tells the server that there is something new to save."""
    start(network, savers=[Saver(tmp_path, "run", index, clock=network.clock) for index in range(2)])
    (client,) = connected(network)
    client.push(GRADIENTS)
    client.take_snapshot()
    client.assign({"w": np.full((4, 2), 3, np.float32), "b": np.float32(4).reshape(())})
    client.configure({"learning_rate": 0.125})
    for index in range(2):
        network.kill_server(index)
        network.start_server(index, rules(index), Saver(tmp_path, "run", index, clock=network.clock))
    client.push(GRADIENTS)
    weights = client.pull()
    assert (weights["w"] == 3 - 0.125).all()
    assert weights["b"] == 4 - 0.125


def test_a_welcome_of_a_server_that_came_back_unnoticed(network):
    """It answers a hello that was repeated to its earlier life."""
    start(network)
    (client,) = connected(network)
    for _ in range(3):
        client.push(GRADIENTS)
    client.flush()
    welcome = Welcome("new", 1, 1, 1, True, 1, 0)
    client._session._receive(0, [bytes(frame) for frame in encode_answer(Answer(0, welcome))])
    assert client.statistics.lost_updates == 2


def test_a_server_that_comes_back_without_its_variables(network):
    start(network)
    (client,) = connected(network)
    client.pull()
    network.kill_server(0)
    network.start_server(0, rules(0))
    with pytest.raises(PeerLost, match="parameter server 0 at alpha:1 came back without its variables"):
        client.pull()


def test_a_run_that_has_ended_well_begins_anew_under_its_name(network, tmp_path, caplog):
    """As what was rendered once may be applied again."""
    savers = [Saver(tmp_path, "run", index, clock=network.clock) for index in range(2)]
    start(network, savers=savers)
    (client,) = connected(network)
    client.push(GRADIENTS)
    client.finish()
    for server in network.servers.values():
        assert not server.turn(0.0)
        server.finish()
    network.beating.clear()
    start(network, savers=[Saver(tmp_path, "run", index, clock=network.clock) for index in range(2)])
    assert "all workers were done when the snapshot was saved: beginning anew" in caplog.text
    (client,) = connected(network)
    assert client.pull()["b"] == 0


def test_rows_are_counted_once_although_the_chief_server_was_killed(network, tmp_path):
    def saver():
        return Saver(tmp_path, "run", 0, clock=network.clock)

    start(network, num_workers=2, savers=(saver(), None))
    clients = connected(network, 2)
    counted = np.zeros(200, int)
    totals = None
    for turn in range(1000):
        client = clients[turn % 2]
        rows = client.next_range(0, 200, 4)
        if isinstance(rows, Over):
            totals = rows.totals
            break
        if turn % 7 == 3:
            network.kill_server(0)
            network.start_server(0, rules_of_two := rules(0, 2), saver())
            assert rules_of_two.is_chief
        counted[rows.start : rows.stop] += 1
        assert client.range_done(rows, {"rows": rows.num_rows})
    assert (counted == 1).all()
    assert float(totals["rows"]) == 200


def test_a_killed_worker_that_is_started_again_joins(network):
    start(network, num_workers=2, max_staleness=0)
    first, second = connected(network, 2)
    for client in (first, second):
        client.push(GRADIENTS)
    first.push(GRADIENTS)
    network.beating.remove(second)
    again = network.client(1, PLACEMENT)
    again.connect()
    assert again.step == 1
    assert again.create(INITIAL) is False
    again.push({name: 3 * gradient for name, gradient in GRADIENTS.items()})
    assert again.pull()["b"] == first.pull()["b"] == -0.5 - 0.5 * 2


def test_workers_that_disagree_about_the_variables(network):
    start(network, num_workers=2)
    connected(network, 1)
    other = network.client(1, place(VARIABLES, 2))
    with pytest.raises(ConfigurationError, match="places other variables"):
        other.connect()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda client: client.push({"x": np.zeros(1)}), "no variable 'x'"),
        (lambda client: client.push({"w": np.zeros((4, 3))}), r"shape \(4, 3\) for 'w' of shape \(4, 2\)"),
        (lambda client: client.push({"t": RowGradient(np.array([10]), np.zeros((1, 3)))}), "rows 0 to 9"),
        (lambda client: client.push({"t": RowGradient(np.array([1]), np.zeros((1, 2)))}), "rows of shape"),
        (lambda client: client.pull(rows={"x": np.array([1])}), r"no variables \['x'\]"),
        (lambda client: client.pull(rows={"t": np.array([1.5])}), "must be integers"),
        (lambda client: client.pull(rows={"t": np.array([-1])}), "rows 0 to 9"),
        (lambda client: client.create({"w": np.zeros(3)}), "needs a value of shape"),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(network, call, text):
    start(network)
    (client,) = connected(network)
    with pytest.raises(UsageError, match=text):
        call(client)
    client.push(GRADIENTS)
    assert client.pull()["b"] == -0.5


@pytest.mark.parametrize("max_staleness", [None, 0, 1])
@pytest.mark.parametrize("seed", range(8))
def test_lost_letters_change_nothing(network, seed, max_staleness):
    """Every request and every answer may get lost, heartbeats as well: the weights are what they would be."""
    luck = random.Random(seed)
    start(network, num_workers=2, max_staleness=max_staleness, worker_timeout_s=1e9)
    clients = connected(network, 2)
    network.lose = lambda server, is_request, frames: luck.random() < 0.2
    for _ in range(4):
        for client in clients:
            client.push(GRADIENTS)
        pulls = [client.start_pull() for client in clients]
        for pull in pulls:
            pull.result()
    for client in clients:
        client.flush()
    expected = 4 if max_staleness == 0 else 8
    assert clients[0].pull()["b"] == -0.5 * expected
    for server in network.servers.values():
        assert server.state.statistics.updates == expected
    assert all(client.statistics.lost_updates == 0 for client in clients)


@pytest.mark.parametrize("seed", range(8))
def test_lost_letters_do_not_change_who_works_on_what(network, seed):
    luck = random.Random(seed)
    start(network, num_workers=2, worker_timeout_s=1e9)
    clients = connected(network, 2)
    network.lose = lambda server, is_request, frames: luck.random() < 0.2
    over, counted = play_epoch(clients, 0, 40, 4)
    assert (counted == 1).all()
    assert all(float(one.totals["rows"]) == 40 for one in over.values())
    for client in clients:
        client.flush()
    assert clients[0].pull()["b"] == -0.5 * 10


def test_what_breaks_the_protocol_is_answered_and_the_server_goes_on(network):
    start(network)
    (client,) = connected(network)

    class Stranger:
        inbox = []

    network.to_server[0].append((Stranger, [b"\0" * 100]))
    network.work()
    ((_, (answer,)),) = Stranger.inbox
    assert json.loads(answer[6:])["code"] == "protocol"
    assert network.servers[0].num_refused_letters == 1
    client.push(GRADIENTS)
    assert client.pull()["b"] == -0.5


def test_leaving_a_block_says_goodbye(network):
    start(network)
    with network.client(0, PLACEMENT) as client:
        client.create(INITIAL)
        client.push(GRADIENTS)
    assert network.updaters[0].num_steps == 1
    assert not network.servers[0].turn(0.0)


def test_an_error_in_a_block_says_no_goodbye(network):
    start(network)
    with pytest.raises(ZeroDivisionError), network.client(0, PLACEMENT) as client:
        client.create(INITIAL)
        1 / 0  # noqa: B018
    assert network.servers[0].turn(0.0)


def test_addresses_and_placement_must_agree():
    with pytest.raises(UsageError, match="a placement on 2 servers, but 1 addresses"):
        Client(["a:1"], 0, PLACEMENT)


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_counted_once_through_all_of_it(network, tmp_path, seed):
    """Lost letters, killed servers and killed workers at once, in any order."""
    luck = random.Random(seed)

    def saver(index):
        return Saver(tmp_path, "run", index, clock=network.clock)

    start(network, num_workers=2, savers=(saver(0), saver(1)), worker_timeout_s=30)
    clients = connected(network, 2)
    network.lose = lambda server, is_request, frames: luck.random() < 0.1
    counted = np.zeros(120, int)
    over: dict[int, Over] = {}
    while len(over) < 2:
        worker = luck.choice([worker for worker in range(2) if worker not in over])
        fate = luck.random()
        if fate < 0.1:
            index = luck.randrange(2)
            network.kill_server(index)
            network.start_server(index, rules(index, 2, worker_timeout_s=30), saver(index))
        elif fate < 0.2:
            clients[worker].take_snapshot()
        rows = clients[worker].next_range(0, 120, 4)
        if isinstance(rows, Over):
            over[worker] = rows
            continue
        clients[worker].push(GRADIENTS)
        if luck.random() < 0.1:
            network.beating.remove(clients[worker])
            clients[worker] = network.client(worker, PLACEMENT)
            clients[worker].connect()
        elif clients[worker].range_done(rows, {"rows": rows.num_rows}):
            counted[rows.start : rows.stop] += 1
    assert (counted == 1).all()
    assert {float(one.totals["rows"]) for one in over.values()} == {120.0}
