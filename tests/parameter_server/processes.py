"""Real server and worker processes for tests that need some to kill."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from trireme.parameter_server import FixedShardsPartitioner, Placement, VariableSpec, place

ROOT = pathlib.Path(__file__).parents[2]
INITIAL = {"w": np.zeros((4, 2), np.float32), "b": np.zeros((), np.float32)}
GRADIENTS = {name: np.ones_like(value) for name, value in INITIAL.items()}


def placement_on(num_servers: int) -> Placement:
    return place([VariableSpec("w", (4, 2)), VariableSpec("b", ())], num_servers, FixedShardsPartitioner(2))


class Process:
    """A Python module in a process of its own, whose lines can be waited for."""

    def __init__(self, module: str, options: Any, environ: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(options)],
            cwd=ROOT,
            env={**os.environ, **(environ or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line of its output; AssertionError with its last words when it has ended."""
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"ended with {self._process.wait()}: {self._process.stderr.read()}")
        return line.strip()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> tuple[int, str, str]:
        """Its exit code, the rest of its output, and its errors."""
        output, errors = self._process.communicate(timeout=60)
        return self._process.returncode, output, errors

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def processes() -> Iterator[Any]:
    """A function that starts processes, none of which is left at the end."""
    started: list[Process] = []

    def start(module: str, options: Any, environ: dict[str, str] | None = None) -> Process:
        started.append(Process(f"tests.parameter_server.{module}", options, environ))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.end()


def server_options(
    rank: int, num_workers: int = 1, address: str = "127.0.0.1:0", **others: Any
) -> dict[str, Any]:
    options = {"directory": None, "interval_s": 3600.0} | others
    rules = {"num_workers": num_workers} | options.pop("rules", {})
    return {"rank": rank, "address": address, "rules": rules, **options}


def reserved_address() -> tuple[str, socket.socket]:
    """An address that a server may bind although the socket that keeps it for the server is open."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    keeper.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{keeper.getsockname()[1]}", keeper
