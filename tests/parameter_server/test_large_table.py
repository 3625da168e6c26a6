"""A table that lives on the servers only: workers move the rows they touch."""

import tracemalloc

import numpy as np
import pytest

from tests.parameter_server.processes import processes, server_options
from tests.parameter_server.server_process import RUN_ID
from trireme.parameter_server import Client, Deadlines, RowGradient, VariableSpec, place
from trireme.parameter_server.transport import WorkerWire

NUM_ROWS, WIDTH, BATCH, NUM_STEPS = 1_000_000, 16, 512, 20
TABLE = VariableSpec("table", (NUM_ROWS, WIDTH), initializer={"constant": 0.5})


class CountingWire(WorkerWire):
    """Counts the bytes that a worker sends and receives."""

    num_bytes = 0

    def exchange(self, outgoing, timeout_s):
        letters = super().exchange(outgoing, timeout_s)
        for _, frames in [*outgoing, *letters]:
            self.num_bytes += sum(len(frame) for frame in frames)
        return letters


@pytest.mark.parametrize("max_staleness", [None, 0])
def test_workers_move_only_the_rows_they_touch(max_staleness):
    placement = place([TABLE, VariableSpec("bias", (WIDTH,))], 2)
    assert {placement.server_of[piece.name] for piece in placement.by_variable["table"]} == {0, 1}
    luck = np.random.default_rng(0)
    expected = np.full((NUM_ROWS, WIDTH), 0.5, np.float32)
    with processes() as start:
        rules = {"max_staleness": max_staleness, "reduction": "sum"}
        up = [start("server_process", server_options(i, 2, rules=rules)) for i in (0, 1)]
        addresses = [server.line() for server in up]
        wires = [CountingWire(addresses, None) for _ in range(2)]
        clients = [
            Client(
                addresses,
                worker,
                placement,
                run_id=RUN_ID,
                wire=wires[worker],
                deadlines=Deadlines(60, 60, 0.1),
            )
            for worker in range(2)
        ]
        for client in clients:
            client.connect()
        clients[0].create({"bias": np.zeros(WIDTH, np.float32)})
        tracemalloc.start()
        for _ in range(NUM_STEPS):
            # Some rows twice in a batch, some in both workers' batches.
            batches = [luck.integers(0, NUM_ROWS, BATCH) % luck.choice([50, NUM_ROWS]) for _ in clients]
            pulls = [
                client.start_pull(rows={"table": ids}) for client, ids in zip(clients, batches, strict=True)
            ]
            for client, ids, rows in zip(clients, batches, [pull.result() for pull in pulls], strict=True):
                np.testing.assert_allclose(rows["table"], expected[ids], rtol=1e-4, atol=1e-6)
                client.push({"table": RowGradient(ids, rows["table"] * np.float32(0.125))})
            changes = [expected[ids] * np.float32(0.125) for ids in batches]
            for ids, change in zip(batches, changes, strict=True):
                np.subtract.at(expected, ids, change)
            for client in clients:
                client.flush()
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        touched = np.flatnonzero((expected != 0.5).any(axis=1))
        final = clients[1].pull(rows={"table": touched}, variables=["bias"])
        np.testing.assert_allclose(final["table"], expected[touched], rtol=1e-4, atol=1e-6)
        untouched = np.setdiff1d(luck.integers(0, NUM_ROWS, 1000), touched)
        assert (clients[1].pull(rows={"table": untouched})["table"] == 0.5).all()

        row_bytes = WIDTH * 4 + 2 * 8
        for wire in wires:
            assert wire.num_bytes < 2 * (NUM_STEPS * BATCH + 40_000) * row_bytes
        for client in clients:
            client.finish()
        assert [server.wait()[0] for server in up] == [0, 0]
    assert peak_bytes < 4 << 20
