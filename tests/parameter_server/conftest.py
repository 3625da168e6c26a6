import pytest

from tests.parameter_server.memory_network import MemoryNetwork
from trireme.parameter_server import Client


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> MemoryNetwork:
    """Room for two servers; clients have no heartbeat of their own, only that of their waits."""
    monkeypatch.setattr(Client, "_beat", lambda self, interval_s: None)
    return MemoryNetwork()
