import pytest

from trireme.cluster.addresses import (
    UNKNOWN,
    agreed_port,
    counted_up,
    duplicates,
    host_of,
    is_address,
    join,
    only_first,
    port_of,
    same_machine,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:2222", True),
        ("train-0.train:29500", True),
        ("[fd00::1]:2222", True),
        ("[fe80::1%eth0]:2222", True),
        ("h:0", True),
        ("h:65535", True),
        ("h:65536", False),
        ("h:123456", False),
        ("h:", False),
        ("h", False),
        (":2222", False),
        ("", False),
        ("?", False),
        ("?:1", False),
        # Without brackets nobody knows where the host ends.
        ("fd00::1:2222", False),
        ("h:-1", False),
        ("h:22 22", False),
        (" h:2222", False),
        ("a,b:2222", False),
        ("grpc://h:2222", False),
        # Digits of other scripts are digits to Python.
        ("h:٢٢", False),
        (2222, False),
        (None, False),
    ],
)
def test_is_address(text, expected):
    assert is_address(text) is expected


@pytest.mark.parametrize(("host", "port"), [("h", 1), ("fd00::1", 2), ("[fd00::1]", 3)])
def test_join_and_split(host, port):
    address = join(host, port)
    assert is_address(address)
    assert host_of(address).strip("[]") == host.strip("[]")
    assert port_of(address) == port


def test_an_unknown_address_has_port_0_and_no_neighbour():
    assert port_of(UNKNOWN) == 0
    assert host_of(UNKNOWN) == UNKNOWN
    assert not same_machine(UNKNOWN, UNKNOWN)
    assert not same_machine("h:1", UNKNOWN)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("h:1", "h:2", True),
        ("h:1", "H:2", True),
        ("h:1", "h2:1", False),
        ("localhost:1", "127.0.0.1:2", True),
        ("[::1]:1", "localhost:2", True),
        # Loopback addresses other than the first stand for separate machines in tests.
        ("127.0.0.1:1", "127.0.0.2:1", False),
    ],
)
def test_same_machine(first, second, expected):
    assert same_machine(first, second) is expected


def test_duplicates_leaves_out_unknown_addresses_and_port_0():
    assert duplicates(["a:0", "a:0", "?", "?", "b:1", "b:1", "c:1", "nonsense", "nonsense"]) == ["b:1"]


def test_agreed_ports_are_equal_for_a_name_spread_and_below_the_ephemeral_range():
    ports = {agreed_port(str(name)) for name in range(1000)}
    assert agreed_port("7.0") == agreed_port("7.0")
    assert len(ports) > 200
    assert min(ports) > 1024
    # A machine of 1000 workers still fits below the ports that Linux hands out by itself.
    assert max(ports) + 1000 < 32_768


def test_lists():
    assert counted_up("h", 10, 3) == ("h:10", "h:11", "h:12")
    assert only_first("h:10", 3) == ("h:10", "?", "?")
