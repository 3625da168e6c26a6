"""Where the workers of one agent will listen in the next generation."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.cluster.addresses import UNKNOWN, host_of, join, port_of
from trireme.launch.ports import ReservedPorts


class Ports:
    """An address for each worker. Those whose port nobody has fixed get a free one, which is kept for them.

    Args:
        expected: the address of each worker as far as it is known: `"?"`, or port 0, stands for the rest.
        host: the host at which other machines reach this one.
    """

    def __init__(self, expected: Sequence[str], host: str) -> None:
        is_fixed = all(address != UNKNOWN and port_of(address) for address in expected)
        self.reserved = ReservedPorts(0 if is_fixed else len(expected))
        self.addresses = (
            tuple(expected)
            if is_fixed
            else tuple(
                join(host if address == UNKNOWN else host_of(address), port.number)
                for address, port in zip(expected, self.reserved.ports, strict=True)
            )
        )

    def close(self) -> None:
        """Gives up the ports that were kept."""
        self.reserved.close()
