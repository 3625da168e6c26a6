import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.errors import ProtocolError
from trireme.parameter_server import RowGradient, VariableSpec, place
from trireme.parameter_server.message_codec import (
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from trireme.parameter_server.messages import (
    ANSWERS,
    REQUESTS,
    Alive,
    Answer,
    Applied,
    Assign,
    Bye,
    Configure,
    Create,
    Done,
    EpochOver,
    Gather,
    Heartbeat,
    Hello,
    Idle,
    NextRange,
    Pull,
    Push,
    RangeDone,
    RangeGranted,
    Ready,
    Refused,
    Request,
    Sender,
    TakeSnapshot,
    Values,
    Welcome,
)
from trireme.parameter_server.wire_format import Limits

LIMITS = Limits()
SLICES = tuple(
    place([VariableSpec("a", (4, 2), initializer={"zeros": [1]}), VariableSpec("b", ())], 1).by_server[0]
)
ARRAYS = {"a": np.ones((4, 2), np.float32), "t": RowGradient(np.array([1, 3]), np.ones((2, 2), np.float32))}
ALL_REQUESTS = [
    Hello("run", "abc", 1),
    Hello("run", "abc", 4, (6, 7), 7, 2),
    Ready(3),
    Create(SLICES, True, {"optimizer": {"name": "adam", "rates": [0.1]}}, {"b": np.float32(1).reshape(())}),
    Configure({"learning_rate": 0.5}),
    Assign({"a": ARRAYS["a"]}),
    Push(3, 1, 32.0, 17, ARRAYS),
    Pull(("a",), {"t": np.array([0, 2])}),
    NextRange(1, 1000, 32, False),
    Gather(2),
    RangeDone(1, 4, {"loss": np.array([1.0, -2.0])}),
    Idle(1),
    Heartbeat(),
    TakeSnapshot(),
    Bye(),
]
ALL_ANSWERS = [
    Welcome("boot", 4, 2, 1, True, 9, 1),
    Welcome("boot", 4, 4, 0, False, 0, 0),
    Applied(3, 18, 1),
    Values(18, ARRAYS),
    RangeGranted(1, 5, 64, 128, 3),
    EpochOver(1, 3, {"loss": np.array([3.0])}),
    Done(False),
    Alive("boot", (4, 5), (1,)),
    Refused("invalid", "no"),
]
SENDER = Sender(2, "session")


def plain(body):
    """Something that compares, arrays included."""

    def simplify(value):
        if isinstance(value, RowGradient):
            return [value.rows.tolist(), value.values.tolist()]
        return [str(value.dtype), value.tolist()]

    content = {item.name: getattr(body, item.name) for item in dataclasses.fields(body)}
    arrays = {name: simplify(value) for name, value in content.pop("arrays", {}).items()}
    return type(body), content, arrays


def test_every_kind_is_here():
    assert {type(body) for body in ALL_REQUESTS} == set(REQUESTS.values())
    assert {type(body) for body in ALL_ANSWERS} == set(ANSWERS.values())


@pytest.mark.parametrize("body", ALL_REQUESTS, ids=lambda body: body.kind)
def test_requests_round_trip(body):
    received = decode_request([bytes(f) for f in encode_request(Request(SENDER, 5, body))], LIMITS)
    assert (received.sender, received.number) == (SENDER, 5)
    assert plain(received.body) == plain(body)


@pytest.mark.parametrize("body", ALL_ANSWERS, ids=lambda body: body.kind)
def test_answers_round_trip(body):
    received = decode_answer([bytes(f) for f in encode_answer(Answer(5, body))], LIMITS)
    assert received.number == 5
    assert plain(received.body) == plain(body)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(10**400, 10**401), st.floats(allow_nan=False),
    st.text(max_size=5), st.lists(st.integers(-1, 3) | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)  # fmt: skip


@settings(deadline=None)
@given(st.sampled_from(ALL_REQUESTS), st.data())
def test_fields_of_any_content_are_refused_or_read(body, data):
    """The header is valid JSON all along, so that what is tested is the reading of fields."""
    head, *frames = (bytes(f) for f in encode_request(Request(SENDER, 5, body)))
    header = json.loads(head[6:])
    name = data.draw(st.sampled_from(sorted(header)))
    if data.draw(st.booleans()):
        header[name] = data.draw(VALUES)
    else:
        del header[name]
    try:
        received = decode_request(
            [head[:6] + json.dumps(header).encode().replace(b"Infinity", b"1e999"), *frames], LIMITS
        )
    except ProtocolError:
        return
    encode_request(received)


PUSH = Push(3, 1, 32.0, 17)


def refused(change, body=PUSH):
    head = bytes(encode_request(Request(SENDER, 5, body))[0])
    header = json.loads(head[6:])
    header.update(change)
    with pytest.raises(ProtocolError) as caught:
        decode_request([head[:6] + json.dumps(header).encode()], LIMITS)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "exec"}, "message kind 'exec' is not one of hello, ready"),
        ({"kind": "welcome"}, "message kind 'welcome' is not one of"),
        ({"step": -1}, "field 'step' must be of type int, got -1"),
        ({"step": True}, "field 'step' must be of type int, got True"),
        ({"step": 1 << 63}, "field 'step'"),
        ({"weight": -1.0}, "field 'weight' must be of type float"),
        ({"weight": "1"}, "field 'weight'"),
        ({"session": None}, "field 'session' must be of type str"),
    ],
)
def test_refusals_name_the_field(change, message):
    assert message in refused(change)


def test_arrays_where_none_belong():
    frames = [bytes(f) for f in encode_request(Request(SENDER, 5, Push(0, 0, 1.0, 0, ARRAYS)))]
    frames[0] = frames[0].replace(b'"kind":"push"', b'"kind":"bye"')
    with pytest.raises(ProtocolError, match="a 'bye' message carries no arrays, but 2 arrived"):
        decode_request(frames, LIMITS)


@pytest.mark.parametrize("content", [3, {}, {"name": "a"}])
def test_slices_that_are_none(content):
    assert "field" in refused({"slices": [content]}, Create((), True)) or "slice" in refused(
        {"slices": [content]}, Create((), True)
    )
