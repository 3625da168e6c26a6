"""Several hosts on one machine: network namespaces of our own on a bridge of our own, with names for each."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import tempfile
import threading
from collections.abc import Sequence

_COUNT = itertools.count()


class Network:
    """A network without a way out; to be used in a `with` block.

    Attributes:
        addresses: the address of each host, by name.
    """

    def __init__(self) -> None:
        self._prefix = f"trireme-{os.getpid()}-{next(_COUNT)}"
        self._switch = f"{self._prefix}-switch"
        self._namespaces: list[str] = []
        self.addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Network:
        self._folder = tempfile.TemporaryDirectory(prefix="trireme-network-")
        self._add_namespace(self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(self._namespaces):
            _ip("netns", "delete", name)
        self._folder.cleanup()

    def add(self, host: str, *names: str) -> None:
        """Adds a host. The names, by default its own, lead to it from then on."""
        with self._lock:
            namespace = f"{self._prefix}-{host}"
            self._add_namespace(namespace)
            number = len(self._namespaces)
            port = f"port{number}"
            peer = ("peer", "name", "eth0", "netns", namespace)
            _ip("-n", self._switch, "link", "add", port, "type", "veth", *peer)
            _ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
            self.addresses[host] = address = f"10.77.0.{number}"
            _ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            self._names |= dict.fromkeys(names or (host,), address)
            lines = ["127.0.0.1 localhost", *(f"{one} {name}" for name, one in self._names.items())]
            # The same file each time: it is mounted.
            self.hosts_file.write_text("".join(f"{line}\n" for line in lines))

    def on(self, host: str) -> list[str]:
        """The beginning of a command line that runs on the host, where all hosts' names are known."""
        # `ip netns exec` would also hide the control groups below /sys.
        named = f'mount --bind {self.hosts_file} /etc/hosts && hostname {host} && exec "$@"'
        own = ["unshare", "--mount", "--uts", "sh", "-c", named, "sh"]
        return ["nsenter", f"--net={self.path(host)}", *own]

    @property
    def hosts_file(self) -> pathlib.Path:
        """An /etc/hosts with all of them."""
        return pathlib.Path(self._folder.name, "hosts")

    def path(self, host: str) -> str:
        """The host's namespace as a file."""
        return f"/run/netns/{self._prefix}-{host}"

    def _add_namespace(self, name: str) -> None:
        _ip("netns", "add", name)
        self._namespaces.append(name)
        _ip("-n", name, "link", "set", "lo", "up")


def _ip(*arguments: str) -> None:
    command: Sequence[str] = ["ip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
