"""Real sockets: who gets in, what is too large, and that nothing that arrives ends a server."""

import random
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import zmq

from tests.parameter_server.processes import GRADIENTS, INITIAL, placement_on
from tests.parameter_server.sgd import SgdUpdater
from trireme.errors import ConfigurationError, UsageError
from trireme.parameter_server import Client, Deadlines, Rules, WorkerKeys, make_keys
from trireme.parameter_server.message_codec import encode_request
from trireme.parameter_server.messages import Hello, Push, Ready, Request, Sender
from trireme.parameter_server.server import Server
from trireme.parameter_server.transport import ServerWire, WorkerWire
from trireme.parameter_server.wire_format import FRAME_BYTES, Limits

SERVERS, WORKERS = make_keys()
OTHERS = make_keys()[1]
HELLO = encode_request(Request(Sender(0, "s"), 0, Hello("", placement_on(1).fingerprint, 1)))


@pytest.fixture
def server_wire():
    wire = ServerWire("127.0.0.1:0", SERVERS)
    yield wire
    wire.close()


@contextmanager
def worker_wire(address, keys):
    wire = WorkerWire([address], keys)
    try:
        yield wire
    finally:
        wire.close()


def arrived(wire, timeout_s=10.0):
    """The first letters to arrive."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if letters := wire.exchange([], 0.05):
            return letters
    return []


def test_letters_go_both_ways(server_wire):
    with worker_wire(server_wire.address, WORKERS) as worker:
        large = np.arange(FRAME_BYTES, dtype=np.uint8).data
        worker.exchange([(0, [b"question", large])], 0.0)
        ((peer, frames),) = arrived(server_wire)
        assert [bytes(frame) for frame in frames] == [b"question", bytes(large)]
        server_wire.exchange([(peer, [b"answer", large])], 0.0)
        ((server, frames),) = arrived(worker)
        assert server == 0
        assert [bytes(frame) for frame in frames] == [b"answer", bytes(large)]


STRANGERS = {
    "no keys": None,
    "the servers' public key and a key pair of its own": WorkerKeys(
        WORKERS.server_public, OTHERS.worker_public, OTHERS.worker_secret
    ),
    "the workers' public key with another secret": WorkerKeys(
        WORKERS.server_public, WORKERS.worker_public, OTHERS.worker_secret
    ),
    "the keys of another run": OTHERS,
}


@pytest.mark.parametrize("keys", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_gets_nothing_in_and_nothing_out(server_wire, keys):
    with (
        worker_wire(server_wire.address, keys) as stranger,
        worker_wire(server_wire.address, WORKERS) as worker,
    ):
        for _ in range(5):
            stranger.exchange([(0, HELLO)], 0.0)
            assert server_wire.exchange([], 0.05) == []
        # A worker that comes after all this is heard, so the stranger has had its chance.
        worker.exchange([(0, [b"worker"])], 0.0)
        ((peer, frames),) = arrived(server_wire)
        assert bytes(frames[0]) == b"worker"
        server_wire.exchange([(peer, [b"answer"])], 0.0)
        assert arrived(worker)
        assert stranger.exchange([], 0.2) == []
        assert server_wire.exchange([], 0.2) == []


def test_workers_of_the_same_machine_meet_in_a_directory(tmp_path):
    tmp_path.chmod(0o700)
    wire = ServerWire("127.0.0.1:0", SERVERS, socket_directory=tmp_path)
    local = WorkerWire([wire.address], WORKERS, socket_directory=tmp_path)
    with worker_wire(wire.address, None) as stranger, worker_wire(wire.address, WORKERS) as remote:
        stranger.exchange([(0, [b"stranger"])], 0.0)
        local.exchange([(0, [b"local"])], 0.0)
        assert [bytes(frames[0]) for _, frames in arrived(wire)] == [b"local"]
        remote.exchange([(0, [b"remote"])], 0.0)
        assert [bytes(frames[0]) for _, frames in arrived(wire)] == [b"remote"], "the keys still count"
        assert wire.exchange([], 0.2) == []
    local.close()
    wire.close()


def test_a_directory_that_others_may_enter(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"mode 755.* chmod 700"):
        ServerWire("127.0.0.1:0", SERVERS, socket_directory=tmp_path)


@pytest.mark.parametrize(
    "greeting", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" + b"\0" * 8 + b"\x7f\x03\0NULL" + b"\0" * 48]
)
def test_bytes_without_the_protocol_get_nothing_in(server_wire, greeting):
    host, port = server_wire.address.split(":")
    with (
        socket.create_connection((host, int(port))) as stranger,
        worker_wire(server_wire.address, WORKERS) as worker,
    ):
        stranger.sendall(greeting + bytes(random.Random(0).randbytes(10_000)))
        worker.exchange([(0, [b"worker"])], 0.0)
        assert [bytes(frames[0]) for _, frames in arrived(server_wire)] == [b"worker"]


def test_a_frame_over_the_limit_is_not_taken_in(server_wire):
    # The header is the largest thing that fits in a frame.
    too_large = bytes(Limits().frame_bytes + 1)
    with (
        worker_wire(server_wire.address, WORKERS) as worker,
        worker_wire(server_wire.address, WORKERS) as other,
    ):
        worker.exchange([(0, [too_large])], 0.0)
        other.exchange([(0, [b"other"])], 0.0)
        assert [bytes(frames[0]) for _, frames in arrived(server_wire)] == [b"other"]
        assert server_wire.exchange([], 0.3) == []


@contextmanager
def running_server(limits=None, **rules):
    """A server in a thread, its loop as in a process; gives the server."""
    wire = ServerWire("127.0.0.1:0", SERVERS, limits)
    server = Server(Rules(1, **rules), SgdUpdater(), wire, limits=limits or Limits())
    is_stopped = threading.Event()

    def loop():
        while not is_stopped.is_set() and server.turn(0.02):
            pass

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield server
        assert thread.is_alive(), "the server ended"
    finally:
        is_stopped.set()
        thread.join()
        wire.close()


def connected(server, limits=None):
    client = Client(
        [server.wire.address],
        0,
        placement_on(1),
        keys=WORKERS,
        deadlines=Deadlines(20, 20, 0.1),
        limits=limits,
    )
    client.connect()
    client.create(INITIAL)
    return client


def test_random_and_mutated_messages_leave_the_server_up():
    luck = random.Random(1)
    session = Sender(0, "0")
    valid = [
        HELLO,
        encode_request(Request(session, 1, Ready(0))),
        encode_request(Request(session, 2, Push(0, 0, 1.0, 0, {"w[0:2]": np.ones((2, 2), np.float32)}))),
    ]
    with running_server() as server, worker_wire(server.wire.address, WORKERS) as hostile:
        connected(server).close()
        num_sent = num_answered = 0
        for _ in range(400):
            frames = [bytearray(frame) for frame in luck.choice(valid)]
            for _ in range(luck.randrange(4)):
                frame = luck.choice(frames)
                if frame:
                    frame[luck.randrange(len(frame))] = luck.randrange(256)
            if luck.random() < 0.3:
                frames = [luck.randbytes(luck.randrange(200)) for _ in range(luck.randrange(1, 4))]
            num_sent += 1
            num_answered += len(hostile.exchange([(0, [bytes(frame) for frame in frames])], 0.0))
        while num_answered < num_sent and (letters := arrived(hostile, 1.0)):
            num_answered += len(letters)
        assert server.num_refused_letters > 100
        # Whoever has the keys may claim a rank, so the mutations may have taken over that of the first client.
        client = connected(server)
        before = client.pull()["b"]
        client.push(GRADIENTS)
        assert client.pull()["b"] == before - 1
        client.close()


def test_a_message_over_the_limit_is_refused_and_the_server_goes_on():
    limits = Limits(message_bytes=3 * FRAME_BYTES)
    with running_server(limits) as server, worker_wire(server.wire.address, WORKERS) as hostile:
        client = connected(server)
        hostile.exchange([(0, [HELLO[0], *[bytes(FRAME_BYTES)] * 3])], 0.0)
        ((_, frames),) = arrived(hostile)
        assert b"more than the limit of 6291456" in bytes(frames[0])
        client.push(GRADIENTS)
        assert client.pull()["b"] == -1
        client.close()


def test_a_replayed_push_counts_once():
    with running_server() as server:
        client = connected(server)
        session = client._session
        client.push(GRADIENTS)
        request = next(r for r in session.connections[0].open.values() if isinstance(r.body, Push))
        for _ in range(5):
            session._post(0, request)
        assert client.pull()["b"] == -1
        client.push(GRADIENTS)
        assert client.pull()["b"] == -2
        assert server.state.statistics.updates == 2
        client.close()


@pytest.mark.parametrize("address", ["nowhere", "host:port", ":1", "host:70000"])
def test_addresses_that_are_none(address):
    with pytest.raises(UsageError, match="must be host:port"):
        ServerWire(address, SERVERS)
    with pytest.raises(UsageError, match="must be host:port"):
        WorkerWire([address], WORKERS)


def test_a_host_that_is_unknown():
    with pytest.raises(ConfigurationError, match=r"no-such-host\.invalid:1 is unknown"):
        ServerWire("no-such-host.invalid:1", SERVERS)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
def test_hosts_by_name_and_by_number(address):
    try:
        wire = ServerWire(address, SERVERS)
    except ConfigurationError as error:
        if address.startswith("[") and "Cannot assign requested address" in str(error):
            pytest.skip("this machine has no IPv6")
        raise
    host, port = wire.address.rsplit(":", 1)
    assert (host, int(port) > 0) == (address.rsplit(":", 1)[0], True)
    with worker_wire(wire.address, WORKERS) as worker:
        worker.exchange([(0, [b"hello"])], 0.0)
        assert arrived(wire)
    wire.close()


def test_a_context_is_not_shared():
    """Authentication is per ZeroMQ context: the process-wide one may belong to somebody else, say Jupyter."""
    first, second = ServerWire("127.0.0.1:0", SERVERS), ServerWire("127.0.0.1:0", make_keys()[0])
    assert zmq.Context.instance() not in (first._context, second._context)
    first.close()
    second.close()
