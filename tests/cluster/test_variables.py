import pytest

from trireme.cluster.variables import Reader
from trireme.errors import ConfigurationError


def reader(environ):
    return Reader(environ, "somebody", "Type this.")


def test_reads_what_is_right():
    read = reader({"R": "1", "N": "2", "H": " host "})
    assert read.place("R", "N") == (1, 2)
    assert read.text("H") == "host"
    assert read.number("ABSENT", default=3) == 3
    read.check()


@pytest.mark.parametrize("value", ["", "-1", "1.5", "x", "²", "1 2"])
def test_what_is_no_number_is_shown(value):
    read = reader({"N": value})
    read.number("N")
    with pytest.raises(ConfigurationError, match=r"N is .* expected a whole number of at least 0"):
        read.check()


def test_tells_everything_at_once_and_what_to_type():
    read = reader({"R": "5", "N": "0", "EMPTY": ""})
    read.place("R", "N")
    read.text("EMPTY")
    read.text("ABSENT")
    with pytest.raises(ConfigurationError) as error:
        read.check()
    assert str(error.value).splitlines() == [
        "The variables of somebody describe no cluster:",
        "  - N is '0': expected a whole number of at least 1",
        "  - EMPTY is empty",
        "  - ABSENT is not set",
        "Type this.",
    ]


def test_a_rank_must_be_below_its_size():
    read = reader({"R": "2", "N": "2"})
    read.place("R", "N")
    with pytest.raises(ConfigurationError, match="R is 2, but N is 2: expected 0 to 1"):
        read.check()
