"""The addresses in a cluster: `host:port`, `[IPv6]:port`, or `?` where the environment does not tell."""

import re
import zlib
from collections import Counter
from collections.abc import Iterable

UNKNOWN = "?"
EXPECTED = "expected host:port with a port of 0 to 65535, like 10.0.0.1:29500 or [fd00::1]:29500"

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Za-z:.%]+\]|[^\s,:\[\]/?]+):(?P<port>[0-9]{1,5})")
_LOOPBACK = {"localhost": "127.0.0.1", "[::1]": "127.0.0.1"}


def is_address(text: object) -> bool:
    """Whether this is `host:port` with a port that exists."""
    match = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    return match is not None and int(match["port"]) <= 65535


def join(host: str, port: int) -> str:
    """`host:port`, with the brackets an IPv6 host needs."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def host_of(address: str) -> str:
    """The host without its port; `?` for an unknown address."""
    return address if address == UNKNOWN else address.rpartition(":")[0]


def port_of(address: str) -> int:
    """The port; 0, which stands for "not needed", for an unknown address."""
    return 0 if address == UNKNOWN else int(address.rpartition(":")[2])


def same_machine(first: str, second: str) -> bool:
    """Whether two addresses name one host. The spellings of the loopback host are the same host;
    an unknown host is no host's neighbour."""
    if UNKNOWN in (first, second):
        return False
    first_host, second_host = host_of(first).lower(), host_of(second).lower()
    return _LOOPBACK.get(first_host, first_host) == _LOOPBACK.get(second_host, second_host)


def duplicates(addresses: Iterable[str]) -> list[str]:
    """The addresses that stand for more than one process. Unknown ones and port 0 may repeat."""
    counts = Counter(address for address in addresses if is_address(address) and port_of(address) != 0)
    return [address for address, count in counts.items() if count > 1]


def agreed_port(name: str) -> int:
    """A port that every process of the run called `name` computes alike, for environments that tell none.

    Ports are 64 apart from the next run's, so that the processes of one machine can count on from it,
    and lie below the range from which Linux gives ports to outgoing connections.
    """
    return 12_000 + 64 * (zlib.crc32(name.encode()) % 300)


def counted_up(host: str, first_port: int, count: int) -> tuple[str, ...]:
    """Addresses of `count` processes on one host, with ports that follow each other."""
    return tuple(join(host, first_port + index) for index in range(count))


def only_first(address: str, count: int) -> tuple[str, ...]:
    """Addresses of `count` workers of which only worker 0's is known."""
    return (address, *[UNKNOWN] * (count - 1))
