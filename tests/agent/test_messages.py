"""Messages come back from the wire as they were, and what is none is refused."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.agent.messages import Message, Start, decode, encode
from trireme.agent.record import Record
from trireme.errors import ProtocolError
from trireme.recovery.policy import FailedAttempt

attempts = st.builds(
    FailedAttempt,
    rank=st.integers(0, 9),
    exit_code=st.none() | st.integers(1, 255),
    step=st.none() | st.integers(0, 9),
    exception=st.text(max_size=5),
    is_stuck=st.booleans(),
)
st.register_type_strategy(FailedAttempt, attempts)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
messages = st.one_of(*(st.from_type(kind) for kind in get_args(Message)))


@given(messages)
def test_a_message_comes_back_as_it_was(message):
    assert decode(encode(message)) == message


START = json.loads(encode(Start(Record(1, True, 7, (FailedAttempt(0, 1),)), ("a:1",), 0)))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"is": "Record"}',
        b'{"is": "Meet"}',
        b'{"is": "Meet", "record": 3}',
        b'{"is": "Stop", "exit_code": "1"}',
        b'{"is": "Stop", "exit_code": true}',
        b'{"is": "Stop", "exit_code": 1, "more": 2}',
        b'{"is": "Ready", "addresses": "a:1"}',
        b'{"is": "Ready", "addresses": [1]}',
        json.dumps(START | {"first_rank": None}).encode(),
        json.dumps(START | {"record": START["record"] | {"history": [{"rank": 0}]}}).encode(),
        # A failure with exit code 0 is none.
        encode(Start(Record(), (), 0)).replace(
            b'"history": []',
            b'"history": [{"rank":0,"exit_code":0,"step":null,"exception":"","is_stuck":false}]',
        ),
    ],
)
def test_what_is_no_message_is_refused(payload):
    with pytest.raises(ProtocolError):
        decode(payload)


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_refused_or_understood(payload):
    try:
        decode(payload)
    except ProtocolError as error:
        assert "no message of an agent" in str(error)
