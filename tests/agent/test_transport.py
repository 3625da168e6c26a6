"""Messages over real sockets on loopback, and connections that do not behave."""

import socket

import pytest

from tests.agent.agents import free_port
from trireme.agent.channel import key_of
from trireme.agent.messages import Beat, News, Stop
from trireme.agent.transport import PROOF_WITHIN_S, Arrived, Ended, Opened, Transport
from trireme.errors import ConfigurationError

NOW_S = 1000.0


class Ends:
    """A listening transport and one that connects to it."""

    def __init__(self, server_token="secret", client_token="secret"):
        self.server, self.client = Transport(key_of(server_token)), Transport(key_of(client_token))
        self.port = self.server.listen("127.0.0.1", 0)
        self.happened = []

    def poll_until(self, is_true, now_s=NOW_S):
        for _ in range(500):
            for name, end in (("server", self.server), ("client", self.client)):
                self.happened += [(name, one) for one in end.poll(0.005, now_s)]
            if is_true():
                return
        raise AssertionError(f"waited in vain; there was {self.happened}")

    def connect(self):
        number = self.client.connect("localhost", self.port, NOW_S)
        self.poll_until(lambda: len(self.of_kind(Opened)) == 2)
        return number, next(one.connection for name, one in self.of_kind(Opened) if name == "server")

    def of_kind(self, kind):
        return [(name, one) for name, one in self.happened if isinstance(one, kind)]

    def close(self):
        self.server.shut_down()
        self.client.shut_down()


@pytest.fixture
def ends():
    made = []

    def make(**tokens):
        made.append(Ends(**tokens))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_messages_of_any_size_arrive_in_order_in_both_directions(ends):
    both = ends()
    client, server = both.connect()
    news = [News("x" * size) for size in (0, 1, 100_000, 1_000_000, 5)]
    for message in news:
        both.client.send(client, message)
        both.server.send(server, message)
    both.poll_until(lambda: len(both.of_kind(Arrived)) == 2 * len(news))
    for end in ("client", "server"):
        assert [one.message for name, one in both.of_kind(Arrived) if name == end] == news
    assert both.client.local_host(client) == "127.0.0.1"


def test_what_was_sent_before_a_connection_is_closed_arrives(ends):
    both = ends()
    client, server = both.connect()
    both.server.send(server, News("x" * 1_000_000))
    both.server.send(server, Stop(3))
    both.server.close(server)
    both.poll_until(lambda: both.of_kind(Ended))
    assert [one.message for _, one in both.of_kind(Arrived)][-1] == Stop(3)
    assert both.of_kind(Ended) == [("client", Ended(client, "it closed the connection", True))]
    assert both.server.is_flushed


def test_who_has_another_token_is_hung_up_on_and_told_what_to_look_at(ends):
    both = ends(client_token="guess")
    both.client.connect("127.0.0.1", both.port, NOW_S)
    both.poll_until(lambda: any(name == "client" for name, _ in both.of_kind(Ended)))
    told = dict(both.of_kind(Ended))
    assert "TRIREME_TOKEN" in told["client"].reason
    assert "does not know the token" in told["server"].reason and not told["server"].was_open


@pytest.mark.parametrize(("host", "words"), [("127.0.0.1", "refused"), ("x" * 70, "cannot be found")])
def test_what_cannot_be_reached_ends_with_the_reason(ends, host, words):
    both = ends()
    number = both.client.connect(host, free_port(), NOW_S)
    both.poll_until(lambda: both.of_kind(Ended))
    [(_, ended)] = both.of_kind(Ended)
    assert ended.connection == number and words in ended.reason


def test_a_stranger_who_says_nothing_is_hung_up_on_in_the_end(ends):
    both = ends()
    with socket.create_connection(("127.0.0.1", both.port)) as stranger:
        both.poll_until(lambda: both.server._connections)
        both.poll_until(lambda: both.of_kind(Ended), now_s=NOW_S + PROOF_WITHIN_S + 1)
        stranger.settimeout(5)
        assert stranger.recv(1000).startswith(b"trireme agent")
        assert stranger.recv(1000) == b""


def test_many_strangers_do_not_keep_an_agent_out(ends):
    both = ends()
    strangers = [socket.create_connection(("127.0.0.1", both.port)) for _ in range(100)]
    try:
        client, server = both.connect()
        both.client.send(client, Beat())
        both.poll_until(lambda: both.of_kind(Arrived))
        assert both.of_kind(Arrived) == [("server", Arrived(server, Beat()))]
        assert len(both.server._connections) < 80
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_port_that_is_taken_is_told_with_what_to_type(ends):
    both = ends()
    with pytest.raises(ConfigurationError, match=f"cannot listen at port {both.port}.*TRIREME_RENDEZVOUS"):
        both.client.listen("127.0.0.1", both.port)
