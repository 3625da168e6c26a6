"""Agents as real processes, with scripts that need no framework, on loopback or on hosts of a network."""

import os
import pathlib
import signal
import socket
import subprocess
import textwrap

import pytest

from tests.agent.agent_process import command
from tests.launch.without_backend import is_alive, wait_for

TOKEN = "a token of these tests"

PREAMBLE = """
import os, pathlib, signal, sys, time
rank, generation = int(os.environ["TRIREME_RANK"]), int(os.environ["TRIREME_GENERATION"])
folder = pathlib.Path(__file__).parent

def tell(name, text=""):
    part = folder / f"{name}.{os.getpid()}.part"
    part.write_text(str(text))
    part.rename(folder / name)

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)

from trireme.cluster.board import Board
board = Board.attach(os.environ)
# Each generation gets further than the one before, so nobody waits before the next start.
board.post(rank, step=generation)
tell(f"pid-{generation}-{rank}", os.getpid())
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script that says which process it is; its folder is where it leaves and finds files."""

    def write(code: str) -> pathlib.Path:
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(code))
        return path

    return write


class Agents:
    """The agents of one run.

    Args:
        script: what their workers run.
        options: those of `plan` and `settings_of`.
        hosts: the beginning of each agent's command line, which takes it to its host.
        environ: what their environment has besides.
    """

    def __init__(self, script, *, num_agents=2, rendezvous=None, hosts=(), environ=None, **options):
        self.script = script
        self.folder = script.parent
        self.hosts = hosts
        self.options = {"workers": 1, "max_restarts": 3, "machines": num_agents, **options}
        self.options["rendezvous"] = rendezvous or f"127.0.0.1:{free_port()}"
        self.environ = {"TRIREME_TOKEN": TOKEN, "TRIREME_HEARTBEAT_S": "0.5", **(environ or {})}
        self.processes = []
        self.agents = {}
        self._logs = {}

    def start(self, *indices, prefix=(), **environ):
        """Starts agents, after those of the same index that have ended."""
        for index in indices or range(self.options["machines"]):
            host = self.hosts[index] if self.hosts else ()
            options = {"log_dir": str(self.folder / "logs"), **self.options, "machine": index}
            with open(self._log(index), "ab") as log:
                process = subprocess.Popen(
                    [*host, *prefix, *command(self.script, **options)],
                    env={**os.environ, **self.environ, **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self.agents[index] = process
            self.processes.append(process)
        return self

    def kill(self, index):
        self.agents[index].kill()
        self.agents[index].wait()

    def wait(self, *indices, within_s=30.0):
        """The exit codes of agents."""
        try:
            return [self.agents[index].wait(within_s) for index in indices or sorted(self.agents)]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s} s:\n{self.all_output()}") from None

    def wait_for_file(self, name):
        """The content of a file that a worker leaves; fails when an agent ends instead of that."""
        path = self.folder / name
        wait_for(lambda: path.exists() or self._have_all_ended(), f"{name} is there, {self.all_output()}")
        assert path.exists(), f"all agents have ended without {name}:\n{self.all_output()}"
        return path.read_text()

    def wait_for_generation(self, generation, num_workers=None):
        """The process ids of the generation's workers."""
        ranks = range(num_workers or self.options["machines"] * self.options["workers"])
        return [int(self.wait_for_file(f"pid-{generation}-{rank}")) for rank in ranks]

    def wait_for_words(self, index, words):
        wait_for(
            lambda: words in self.output(index) or self._have_all_ended(), f"agent {index} says {words!r}"
        )
        assert words in self.output(index), self.all_output()

    def let(self, name):
        """Leaves a file that workers wait for."""
        (self.folder / name).touch()

    def output(self, index):
        return self._log(index).read_text(errors="replace")

    def all_output(self):
        names = sorted(self.agents)
        return "".join(f"--- agent {index}\n{self.output(index)}" for index in names)

    def end(self):
        """Kills what is left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _log(self, index):
        return self.folder / f"agent-{index}.txt"

    def _have_all_ended(self):
        return all(process.poll() is not None for process in self.agents.values())


@pytest.fixture
def agents():
    """Makes `Agents`, and kills those that a failed test leaves running."""
    made = []

    def make(script, **settings):
        made.append(Agents(script, **settings))
        return made[-1]

    yield make
    for one in made:
        one.end()


def free_port():
    """A port of loopback that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_gone(pids):
    wait_for(lambda: not any(map(is_alive, pids)), f"{pids} have ended")


def kill(pid):
    os.kill(pid, signal.SIGKILL)
