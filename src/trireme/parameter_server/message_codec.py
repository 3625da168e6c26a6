"""Messages to frames and back. What does not fit its dataclass, field by field, is a `ProtocolError`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from trireme.errors import ProtocolError
from trireme.parameter_server.messages import ANSWERS, REQUESTS, Answer, Arrays, Body, Request, Sender
from trireme.parameter_server.partition import Slice
from trireme.parameter_server.wire_format import Frame, Limits, decode, encode


def encode_request(request: Request) -> list[Frame]:
    """The frames of a request; arrays are not copied."""
    head = {"number": request.number, "worker": request.sender.worker, "session": request.sender.session}
    return _encode(head, request.body)


def decode_request(frames: Sequence[Frame], limits: Limits) -> Request:
    """The request in `frames`, or a ProtocolError."""
    header, arrays = decode(frames, limits)
    number = _field(header, "number", "int")
    sender = Sender(_field(header, "worker", "int"), _field(header, "session", "str"))
    return Request(sender, number, _decode_body(header, arrays, REQUESTS))


def encode_answer(answer: Answer) -> list[Frame]:
    """The frames of an answer; arrays are not copied."""
    return _encode({"number": answer.number}, answer.body)


def decode_answer(frames: Sequence[Frame], limits: Limits) -> Answer:
    """The answer in `frames`, or a ProtocolError."""
    header, arrays = decode(frames, limits)
    return Answer(_field(header, "number", "int"), _decode_body(header, arrays, ANSWERS))


def slice_to_json(piece: Slice) -> dict[str, Any]:
    """Plain JSON that `slice_from_json` turns back into the same slice."""
    return {**vars(piece), "shape": list(piece.shape), "variable_shape": list(piece.variable_shape)}


def slice_from_json(content: Any) -> Slice:
    """The slice that `content` describes, or a ProtocolError."""
    if not isinstance(content, dict):
        raise ProtocolError(f"a slice must be a JSON object, got {type(content).__name__}")
    return Slice(**_checked_fields(content, Slice))


def _encode(head: dict[str, Any], body: Body) -> list[Frame]:
    content = {item.name: getattr(body, item.name) for item in fields(body)}
    arrays = content.pop("arrays", {})
    if "slices" in content:
        content["slices"] = [slice_to_json(s) if isinstance(s, Slice) else s for s in content["slices"]]
    return encode({"kind": body.kind, **head, **content}, arrays)


def _decode_body(header: dict[str, Any], arrays: Arrays, known: Mapping[str, type[Body]]) -> Body:
    kind = _field(header, "kind", "str")
    if kind not in known:
        raise ProtocolError(f"message kind {kind!r} is not one of {', '.join(known)}")
    accepts_arrays = any(item.name == "arrays" for item in fields(known[kind]))
    if arrays and not accepts_arrays:
        raise ProtocolError(f"a {kind!r} message carries no arrays, but {len(arrays)} arrived")
    extra = {"arrays": arrays} if accepts_arrays else {}
    return known[kind](**_checked_fields(header, known[kind]), **extra)


def _checked_fields(content: Mapping[str, Any], cls: type) -> dict[str, Any]:
    names_and_types = [(item.name, str(item.type)) for item in fields(cls) if item.name != "arrays"]
    return {name: _field(content, name, annotation) for name, annotation in names_and_types}


def _field(content: Mapping[str, Any], name: str, annotation: str) -> Any:
    if name not in content:
        raise ProtocolError(f"a message without the field {name!r}")
    try:
        return _READERS[annotation](content[name])
    except (ValueError, OverflowError):
        raise ProtocolError(
            f"field {name!r} must be of type {annotation}, got {content[name]!r:.80}"
        ) from None


def _require(is_right: bool, value: Any) -> Any:
    if not is_right:
        raise ValueError
    return value


def _read_int(value: Any) -> Any:
    return _require(type(value) is int and 0 <= value < 1 << 62, value)


def _read_float(value: Any) -> Any:
    return float(_require(type(value) in (int, float) and 0 <= value < math.inf, value))


def _read_text(value: Any) -> Any:
    return _require(isinstance(value, str), value)


def _read_object(value: Any) -> Any:
    return _require(isinstance(value, dict), value)


def _read_many(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: tuple(read(item) for item in _require(isinstance(value, list), value))


def _read_optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


# Keyed by the annotation as it is written above; every number in the protocol is at least zero.
_READERS: dict[str, Callable[[Any], Any]] = {
    "int": _read_int,
    "int | None": _read_optional(_read_int),
    "float": _read_float,
    "bool": lambda value: _require(isinstance(value, bool), value),
    "str": _read_text,
    "tuple[str, ...]": _read_many(_read_text),
    "tuple[int, ...]": _read_many(_read_int),
    "tuple[Slice, ...]": _read_many(slice_from_json),
    "Mapping[str, Any]": _read_object,
    "Mapping[str, Any] | None": _read_optional(_read_object),
}
