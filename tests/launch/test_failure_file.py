"""What a failing worker leaves: the user's part of the traceback, whole or not at all."""

import json
import os

import pytest

from trireme.errors import ConfigurationError, PeerTimeout, RestartBudgetUsedUp, TriremeError, UsageError
from trireme.launch import failure_file
from trireme.launch.failure_file import Failure


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return raised


def test_round_trip(tmp_path):
    path = str(tmp_path / "failure.json")
    failure = failure_file.from_exception(caught(ValueError("ein Umlaut: ü, a lone half: \udc80")), 3, step=7)
    failure_file.write(path, failure)
    assert failure_file.read(path) == failure
    assert (failure.rank, failure.step, failure.pid, failure.exception) == (3, 7, os.getpid(), "ValueError")
    assert os.listdir(tmp_path) == ["failure.json"]


def test_no_file_is_no_failure(tmp_path):
    assert failure_file.read(str(tmp_path / "failure.json")) is None


def test_a_reader_never_sees_half_a_file(tmp_path, monkeypatch):
    path = str(tmp_path / "failure.json")

    def interrupted(content, file):
        file.write('{"rank"')
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dump", interrupted)
    with pytest.raises(KeyboardInterrupt):
        failure_file.write(path, Failure(0, 0.0, "", "", "", 1))
    assert failure_file.read(path) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("x"), 1),
        (SystemExit(), 0),
        (SystemExit(0), 0),
        (SystemExit(3), 3),
        (SystemExit(-1), 255),
        (SystemExit(256), 0),
        (SystemExit("a message"), 1),
        (KeyboardInterrupt(), 130),
        (TriremeError("x"), 1),
        (UsageError("x"), 64),
        (ConfigurationError("x"), 78),
        (PeerTimeout("x"), 75),
        (RestartBudgetUsedUp("x"), 65),
    ],
)
def test_exit_codes(error, code):
    assert failure_file.exit_code(error) == code


def test_the_type_is_named_with_its_module_unless_everybody_knows_it():
    assert failure_file.from_exception(KeyError("x"), 0).exception == "KeyError"
    assert failure_file.from_exception(UsageError("x"), 0).exception == "trireme.errors.UsageError"


def test_causes_are_told():
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as outer:
        text = failure_file.user_traceback(outer)
    assert text.index("KeyError: 'inner'") < text.index("direct cause") < text.index("ValueError: outer")
