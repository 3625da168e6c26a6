"""Keeps all contestants alive and gives them their turns, so that whatever disturbs the machine hits all alike."""

import contextlib
import os
import pathlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from contestants import Contestant
from line import Line, LineClosed

_START_S = 600.0
_FIRST_EPOCH_S = 600.0
_BLOCK_S = 300.0
_END_S = 60.0


class ContestantFailed(Exception):
    """A contestant's process ended or hung; the message has the end of its output."""


class Referee:
    """Starts contestants and tells them when to train. Use `refereeing`."""

    def __init__(self, folder: str) -> None:
        self._folder = pathlib.Path(folder)
        self._processes: list[tuple[Contestant, subprocess.Popen[bytes], pathlib.Path]] = []
        self._lines: dict[str, list[Line]] = {}
        self.versions: dict[str, str] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.address = str(self._folder / "referee")
        self._socket.bind(self.address)
        self._socket.listen(64)

    def start(self, entries: list[Contestant]) -> None:
        """Starts the contestants, one after the other, and waits until all their processes have said hello."""
        for entry in entries:
            for number, command in enumerate(entry.commands):
                log = self._folder / f"{entry.name}-{number}.log"
                with log.open("wb") as output:
                    process = subprocess.Popen(
                        command,
                        env=dict(entry.environ),
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                self._processes.append((entry, process, log))
            self._lines[entry.name] = [self._hello(entry) for _ in range(entry.num_processes)]

    def _hello(self, entry: Contestant) -> Line:
        deadline = time.monotonic() + _START_S
        self._socket.settimeout(0.5)
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                connection, _ = self._socket.accept()
                line = Line(connection)
                hello = line.receive(_START_S)
                if hello["name"] != entry.name:
                    raise ContestantFailed(f"{hello['name']} came where {entry.name} was expected")
                self.versions.update(hello["versions"])
                return line
            self._check(entry)
        raise ContestantFailed(f"{entry.name} did not start within {_START_S:.0f} s:\n{self._output(entry)}")

    def begin(self, entry: Contestant, workload: str, is_quick: bool, num_steps: int) -> dict[str, Any]:
        """Lets a contestant build and warm up a model. It stands ready afterwards for blocks of so many steps."""
        self._tell(entry, {"workload": workload, "is_quick": is_quick, "num_steps": num_steps})
        return self._answers(entry, _FIRST_EPOCH_S)[0]

    def play(self, entry: Contestant) -> list[dict[str, float]]:
        """Lets a contestant train one block; returns what each of its processes measured."""
        self._tell(entry, "go")
        return self._answers(entry, _BLOCK_S)

    def stop(self, entry: Contestant) -> None:
        """Ends the training of the model that the contestant has begun."""
        self._tell(entry, "stop")

    def end(self) -> None:
        """Sends all contestants home and waits for them."""
        for entry in {entry.name: entry for entry, _, _ in self._processes}.values():
            self._tell(entry, "end")
        for entry, process, _ in self._processes:
            if process.wait(_END_S) != 0:
                raise ContestantFailed(
                    f"{entry.name} ended with code {process.returncode}:\n{self._output(entry)}"
                )

    def close(self) -> None:
        """Ends every process that is left; what they started ends with them."""
        for lines in self._lines.values():
            for line in lines:
                line.close()
        for _, process, _ in self._processes:
            process.terminate()
        for _, process, _ in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._socket.close()

    def _tell(self, entry: Contestant, message: Any) -> None:
        with self._explaining(entry):
            for line in self._lines[entry.name]:
                line.send(message)

    def _answers(self, entry: Contestant, timeout_s: float) -> list[Any]:
        with self._explaining(entry):
            return [line.receive(timeout_s) for line in self._lines[entry.name]]

    @contextlib.contextmanager
    def _explaining(self, entry: Contestant) -> Iterator[None]:
        try:
            yield
        except LineClosed as error:
            raise ContestantFailed(f"{entry.name}: {error}\n{self._output(entry)}") from error

    def _check(self, entry: Contestant) -> None:
        for other, process, _ in self._processes:
            if other is entry and process.poll() is not None:
                raise ContestantFailed(
                    f"{entry.name} ended with code {process.returncode}:\n{self._output(entry)}"
                )

    def _output(self, entry: Contestant) -> str:
        logs = [log for other, _, log in self._processes if other is entry]
        return "\n".join(log.read_text(errors="replace")[-4000:] for log in logs)


@contextlib.contextmanager
def refereeing(
    contestants_at: Callable[[str], list[Contestant]],
) -> Iterator[tuple[Referee, list[Contestant]]]:
    """Yields a referee and the contestants, all started; ends their processes afterwards, come what may.

    Args:
        contestants_at: returns the contestants that come to the referee at an address.
    """
    with tempfile.TemporaryDirectory(prefix="trireme-benchmark-") as folder:
        referee = Referee(folder)
        try:
            entries = contestants_at(referee.address)
            referee.start(entries)
            yield referee, entries
            referee.end()
        finally:
            referee.close()


def busy_s() -> float:
    """Returns the seconds that all cores of this machine together have worked so far, for anybody."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, *others = (int(word) for word in file.readline().split()[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")
