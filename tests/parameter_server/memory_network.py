"""Servers and clients in one thread, with a network and a clock that a test plays tricks on."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.parameter_server.sgd import SgdUpdater
from trireme.parameter_server import Client, Deadlines, Placement, Rules, Saver
from trireme.parameter_server.server import Server
from trireme.parameter_server.transport import Letter

ADDRESSES = ("alpha:1", "beta:2")
DEADLINES = Deadlines(server_s=20.0, peers_s=100.0, heartbeat_s=1.0)


class MemoryNetwork:
    """Whoever waits makes the servers work and time pass. `lose(server, is_request, frames)` says which letters
    get lost; `paused` are the servers that do not move, `beating` the clients that are alive while others wait."""

    def __init__(self, num_servers: int = 2) -> None:
        self.now_s = 0.0
        self.servers: dict[int, Server] = {}
        self.updaters: dict[int, SgdUpdater] = {}
        self.to_server: dict[int, list[Letter]] = {index: [] for index in range(num_servers)}
        self.to_client: dict[Any, list[Letter]] = {}
        self.paused: set[int] = set()
        self.beating: list[Client] = []
        self.lose: Callable[[int, bool, Sequence[Any]], bool] = lambda server, is_request, frames: False

    def clock(self) -> float:
        return self.now_s

    def start_server(self, index: int, rules: Rules, saver: Saver | None = None) -> Server:
        updater = SgdUpdater()
        server = Server(rules, updater, _ServerSide(self, index), saver, clock=self.clock)
        self.servers[index], self.updaters[index] = server, updater
        return server

    def kill_server(self, index: int) -> None:
        del self.servers[index]
        self.to_server[index].clear()

    def work(self) -> None:
        for index, server in list(self.servers.items()):
            if index not in self.paused:
                server.turn(0.0)
                server.turn(0.0)  # so that the answers leave

    def client(self, worker: int, placement: Placement, **options: Any) -> Client:
        wire = _ClientSide(self)
        options = {"run_id": "run", "deadlines": DEADLINES} | options
        client = Client(ADDRESSES, worker, placement, wire=wire, clock=self.clock, **options)
        self.beating.append(client)
        return client


class _ServerSide:
    def __init__(self, network: MemoryNetwork, index: int) -> None:
        self._network = network
        self._index = index

    def exchange(self, outgoing: Sequence[Letter], timeout_s: float) -> list[Letter]:
        for peer, frames in outgoing:
            if not self._network.lose(self._index, False, frames):
                peer.inbox.append((self._index, [bytes(frame) for frame in frames]))
        letters = self._network.to_server[self._index]
        self._network.to_server[self._index] = []
        return letters

    def close(self) -> None:
        pass


class _ClientSide:
    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self.inbox: list[Letter] = []

    def exchange(self, outgoing: Sequence[Letter], timeout_s: float) -> list[Letter]:
        network = self._network
        for server, frames in outgoing:
            # While a server is down, its letters are lost; while it is paused, they lie in its queue.
            if server in network.servers and not network.lose(server, True, frames):
                network.to_server[server].append((self, [bytes(frame) for frame in frames]))
        network.work()
        if not self.inbox and timeout_s:
            network.now_s += timeout_s
            for client in network.beating:
                client._session.pump(0.0)
            network.work()
        letters, self.inbox = self.inbox, []
        return letters

    def close(self) -> None:
        pass
