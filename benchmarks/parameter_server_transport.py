"""How fast do gradients and weights move between a worker and a parameter server?

Moves the same bytes to and fro in one run: over a plain TCP connection into buffers that exist already (what the
loopback device can do), and as `push` and `pull` of a `Client` against a server process: over plain TCP, with the
arithmetic of SGD, encrypted (CURVE), and over the Unix socket that workers of the same machine use. Prints JSON;
each `ratio` is bytes per second over those of the plain TCP connection.

    python benchmarks/parameter_server_transport.py [--mebibytes 64] [--repeats 8] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pathlib
import platform
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from trireme.parameter_server import (
    Client,
    Gradient,
    Placement,
    Rules,
    ServerKeys,
    Slice,
    VariableSpec,
    make_keys,
    place,
    serve,
)


class StoringUpdater:
    """The newest gradient is the weight: no arithmetic, so that what is timed is the exchange."""

    def __init__(self) -> None:
        self.values: dict[str, np.ndarray] = {}

    def configure(self, settings: Mapping[str, Any]) -> None:
        pass

    def create(self, piece: Slice, value: np.ndarray | None) -> None:
        assert value is not None
        self.values[piece.name] = value

    def apply(self, gradients: Mapping[str, Gradient]) -> None:
        for name, gradient in gradients.items():
            assert isinstance(gradient, np.ndarray)
            self.values[name] = gradient

    def read(self, name: str, rows: np.ndarray | None) -> np.ndarray:
        return self.values[name]

    def optimizer_state(self) -> Mapping[str, np.ndarray]:
        return {}

    def restore(self, optimizer_state: Mapping[str, np.ndarray]) -> None:
        pass


class SgdUpdater(StoringUpdater):
    """The cheapest real optimizer, with the copy that keeps what is sent apart from what changes."""

    def apply(self, gradients: Mapping[str, Gradient]) -> None:
        for name, gradient in gradients.items():
            assert isinstance(gradient, np.ndarray)
            self.values[name] -= np.float32(0.1) * gradient

    def read(self, name: str, rows: np.ndarray | None) -> np.ndarray:
        return self.values[name].copy()


def variables_of(num_bytes: int) -> list[VariableSpec]:
    """Sizes as in a network: one variable has half of the bytes, many small ones the rest."""
    variables = [VariableSpec("dense", (num_bytes // 2 // 4096, 1024))]
    left = num_bytes - variables[0].nbytes
    while left:
        size = max(4, min(left, left // 3 // 4 * 4))
        variables += [VariableSpec(f"layer_{len(variables)}", (size // 4,))]
        left -= size
    return variables


def run_server(
    updater: type[StoringUpdater], keys: ServerKeys | None, directory: str | None, report: Connection
) -> None:
    serve(
        "127.0.0.1:0",
        updater(),
        Rules(1),
        keys=keys,
        socket_directory=directory,
        on_listening=report.send,
    )


def run_echo(num_bytes: int, num_rounds: int, report: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        report.send(listener.getsockname()[1])
        connection, _ = listener.accept()
        with connection:
            buffer = memoryview(bytearray(num_bytes))
            for _ in range(num_rounds):
                receive(connection, buffer)
                connection.sendall(buffer)


def receive(connection: socket.socket, buffer: memoryview) -> None:
    position = 0
    while position < len(buffer):
        position += connection.recv_into(buffer[position:])


def start(target: Callable[..., None], *arguments: Any) -> tuple[multiprocessing.process.BaseProcess, Any]:
    """A process, and the first thing that it says."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    return process, ours.recv()


@contextmanager
def over_tcp(num_bytes: int, num_rounds: int) -> Iterator[Callable[[], None]]:
    process, port = start(run_echo, num_bytes, num_rounds)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        buffer = memoryview(bytearray(num_bytes))

        def to_and_fro() -> None:
            connection.sendall(buffer)
            receive(connection, buffer)

        yield to_and_fro
    process.join()


@contextmanager
def over_client(
    placement: Placement,
    updater: type[StoringUpdater],
    is_encrypted: bool = False,
    directory: str | None = None,
) -> Iterator[Callable[[], None]]:
    keys = make_keys() if is_encrypted else (None, None)
    process, address = start(run_server, updater, keys[0], directory)
    values = {
        name: np.ones(pieces[0].variable_shape, np.float32) for name, pieces in placement.by_variable.items()
    }
    with Client([address], 0, placement, keys=keys[1], socket_directory=directory) as client:
        client.create(values)

        def push_and_pull() -> None:
            client.push(values)
            client.pull()

        yield push_and_pull
    process.join()


def measure(mebibytes: int, repeats: int) -> dict[str, Any]:
    num_bytes = mebibytes << 20
    placement = place(variables_of(num_bytes), 1)
    durations_s: dict[str, list[float]] = {}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        cases = {
            "tcp": over_tcp(num_bytes, repeats + 1),
            "push_pull": over_client(placement, StoringUpdater),
            "push_pull_sgd": over_client(placement, SgdUpdater),
            "push_pull_encrypted": over_client(placement, StoringUpdater, is_encrypted=True),
            "push_pull_same_machine": over_client(placement, StoringUpdater, directory=directory),
        }
        rounds = {name: stack.enter_context(case) for name, case in cases.items()}
        durations_s = {name: [] for name in cases}
        # In turn, so that whatever else the machine does slows all of them alike.
        for _ in range(repeats + 1):
            for name, to_and_fro in rounds.items():
                begin_s = time.perf_counter()
                to_and_fro()
                durations_s[name].append(time.perf_counter() - begin_s)
    # The first round fills pools and caches.
    medians_s = {name: statistics.median(durations[1:]) for name, durations in durations_s.items()}
    rates = {name: 2 * num_bytes / median_s for name, median_s in medians_s.items()}
    return {
        "bytes_each_way": num_bytes,
        "num_variables": len(placement.by_variable),
        "repeats": repeats,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "gigabytes_per_s": {name: round(rate / 1e9, 3) for name, rate in rates.items()},
        "ratio": round(rates["push_pull"] / rates["tcp"], 3),
        "ratio_with_sgd": round(rates["push_pull_sgd"] / rates["tcp"], 3),
        "ratio_encrypted": round(rates["push_pull_encrypted"] / rates["tcp"], 3),
        "ratio_same_machine": round(rates["push_pull_same_machine"] / rates["tcp"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--mebibytes", type=int, default=64, help="bytes of gradients per step (default 64)")
    parser.add_argument("--repeats", type=int, default=8, help="timed rounds; the median counts (default 8)")
    parser.add_argument("--output", type=pathlib.Path, help="where to write the report, besides printing it")
    arguments = parser.parse_args()
    text = json.dumps(measure(arguments.mebibytes, arguments.repeats), indent=1) + "\n"
    print(text, end="")
    if arguments.output:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
