"""Bytes between two agents: nothing is taken from who does not know the token, and nothing that was changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.agent.channel import Channel, key_of
from trireme.errors import ProtocolError


def greet(client, server):
    """Lets both ends prove themselves."""
    for _ in range(3):
        pass_on(server, client)
        pass_on(client, server)


def pass_on(source, target):
    data = bytes(source.outgoing)
    source.outgoing.clear()
    return target.receive(data)


def pair(client_token="secret", server_token="secret"):
    return Channel(key_of(client_token), is_server=False), Channel(key_of(server_token), is_server=True)


def open_pair():
    client, server = pair()
    greet(client, server)
    assert client.is_open and server.is_open
    return client, server


@given(st.lists(st.binary(max_size=100), max_size=5), st.integers(1, 50))
def test_messages_arrive_whole_however_the_bytes_are_cut(messages, size):
    client, server = open_pair()
    for message in messages:
        client.send(message)
    data, arrived = bytes(client.outgoing), []
    for start in range(0, len(data), size):
        arrived += server.receive(data[start : start + size])
    assert arrived == messages


def test_the_greeting_may_come_byte_by_byte():
    client, server = pair()
    for _ in range(4):
        for source, target in ((server, client), (client, server)):
            data = bytes(source.outgoing)
            source.outgoing.clear()
            for byte in data:
                target.receive(bytes([byte]))
    assert client.is_open and server.is_open


def test_who_does_not_know_the_token_is_found_out_and_learns_nothing():
    client, server = pair(client_token="guess")
    pass_on(server, client)
    with pytest.raises(ProtocolError, match="does not know the token"):
        pass_on(client, server)
    assert not server.outgoing


def test_a_server_that_does_not_know_the_token_is_found_out():
    client, _ = pair()
    impostor = Channel(key_of("guess"), is_server=True)
    pass_on(impostor, client)
    client.outgoing.clear()
    with pytest.raises(ProtocolError, match="does not know the token"):
        client.receive(b"\0" * 32)
    assert not client.is_open


def test_a_proof_sent_back_to_its_author_proves_nothing():
    """Two clients: one of them plays server with the other's own words."""
    client, _ = pair()
    mirror, _ = pair()
    server = Channel(key_of("secret"), is_server=True)
    pass_on(server, client)
    proof = bytes(client.outgoing)
    with pytest.raises(ProtocolError):
        client.receive(proof[32:])
    assert not mirror.is_open


@given(st.data())
def test_what_was_changed_on_the_way_is_not_taken(data):
    client, server = open_pair()
    client.send(b"one message")
    sent = bytearray(client.outgoing)
    position = data.draw(st.integers(4, len(sent) - 1))
    sent[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        server.receive(bytes(sent))


@pytest.mark.parametrize("story", ["twice", "swapped", "sent back", "from another connection"])
def test_what_was_recorded_cannot_be_used_again(story):
    client, server = open_pair()
    client.send(b"first")
    first = bytes(client.outgoing)
    client.outgoing.clear()
    client.send(b"second")
    second = bytes(client.outgoing)
    other_client, other_server = open_pair()
    with pytest.raises(ProtocolError):
        if story == "twice":
            server.receive(first + first)
        elif story == "swapped":
            server.receive(second)
        elif story == "sent back":
            client.receive(first)
        else:
            other_server.receive(first)
    assert other_client.is_open


def test_the_token_is_not_in_what_travels():
    client, server = pair("a very secret token", "a very secret token")
    seen = bytes(server.outgoing)
    pass_on(server, client)
    seen += bytes(client.outgoing)
    pass_on(client, server)
    seen += bytes(server.outgoing)
    assert b"very secret" not in seen and key_of("a very secret token") not in seen


def test_an_endless_message_is_refused_before_it_is_stored():
    client, server = open_pair()
    with pytest.raises(ProtocolError, match="bytes"):
        server.receive(b"\xff" * 100)
    assert client.is_open


def test_something_that_is_no_agent_is_told_so():
    client, _ = pair()
    with pytest.raises(ProtocolError, match="HTTP"):
        client.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 40)
