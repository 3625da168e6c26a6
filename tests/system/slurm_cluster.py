"""A Slurm of two nodes, each in a network namespace of its own, from Debian's packages."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

from tests.system.network import Network

NODES = ("n0", "n1")
CONTROLLER = "controller"
START_TIMEOUT_S = 30.0
# How long a requeued job waits, which is how long Slurm takes a step's credential to live: 120 s by default.
REQUEUE_S = 5

CONFIGURATION = """\
ClusterName=here
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire={requeue_s}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=30
InactiveLimit=0
ReturnToService=2
MpiDefault=none
NodeName={nodes} CPUs=2 State=UNKNOWN
PartitionName=low Nodes={nodes} Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes={nodes} MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""


class SlurmCluster:
    """The cluster as somebody at the controller sees it."""

    def __init__(self, folder: pathlib.Path, network: Network) -> None:
        self.folder, self._network = folder, network
        self.environ = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str, cwd: pathlib.Path | None = None, stderr: int = subprocess.PIPE) -> str:
        """What a command at the controller prints on standard output."""
        done = subprocess.run(
            [*self._network.on(CONTROLLER), *command],
            cwd=cwd,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def job(self, number: int) -> dict[str, str]:
        """What `scontrol` tells of a job."""
        words = self.run("scontrol", "--oneliner", "show", "job", str(number)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, number: int, *states: str, timeout_s: float = 90.0) -> dict[str, str]:
        """The job once it is in one of the states."""
        deadline = time.monotonic() + timeout_s
        while (job := self.job(number))["JobState"] not in states:
            assert time.monotonic() < deadline, f"{job}\n{self.logs()}"
            time.sleep(0.1)
        return job

    def logs(self) -> str:
        """The ends of the daemons' logs, for a test that fails."""
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )


@contextlib.contextmanager
def slurm_cluster(folder: pathlib.Path) -> Iterator[SlurmCluster]:
    """A running cluster, whose files are all in `folder`."""
    with Network() as network, contextlib.ExitStack() as daemons:
        for host in (CONTROLLER, *NODES):
            network.add(host)
        _write_configuration(folder)
        cluster = SlurmCluster(folder, network)
        munge = _munged(folder)
        daemons.enter_context(_daemon(munge, folder, cluster.environ, "munged"))
        _wait_until(lambda: (folder / "munge" / "socket").exists(), "munged made no socket")
        for command, host in [
            (["slurmctld", "-D"], CONTROLLER),
            *((["slurmd", "-D", "-N", node], node) for node in NODES),
        ]:
            name = f"daemon-{host}"
            daemons.enter_context(_daemon([*network.on(host), *command], folder, cluster.environ, name))
        _wait_until(lambda: _num_idle(cluster) == len(NODES), "the nodes are not idle", cluster)
        yield cluster


def _write_configuration(folder: pathlib.Path) -> None:
    for name in ("state", "munge", *NODES):
        (folder / name).mkdir()
    text = CONFIGURATION.format(
        controller=CONTROLLER,
        folder=folder,
        nodes=f"n[0-{len(NODES) - 1}]",
        requeue_s=REQUEUE_S,
    )
    (folder / "slurm.conf").write_text(text)


def _munged(folder: pathlib.Path) -> list[str]:
    """The command of an authentication daemon with a key of our own."""
    munge = folder / "munge"
    (munge / "key").write_bytes(os.urandom(64))
    (munge / "key").chmod(0o400)
    options = {
        "key-file": "key",
        "socket": "socket",
        "pid-file": "pid",
        "log-file": "log",
        "seed-file": "seed",
    }
    return [
        "munged",
        "--foreground",
        "--force",
        *(f"--{option}={munge / name}" for option, name in options.items()),
    ]


@contextlib.contextmanager
def _daemon(command: list[str], folder: pathlib.Path, environ: dict[str, str], name: str) -> Iterator[None]:
    program = command[0] if shutil.which(command[0]) else f"/usr/sbin/{command[0]}"
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *command[1:]],
            env=environ | {"PATH": f"{environ['PATH']}:/usr/sbin:/sbin"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _num_idle(cluster: SlurmCluster) -> int:
    done = subprocess.run(
        [*cluster._network.on(CONTROLLER), "sinfo", "--noheader", "--Node", "--partition=low", "--format=%t"],
        env=cluster.environ,
        capture_output=True,
        text=True,
    )
    return done.stdout.split().count("idle")


def _wait_until(condition, otherwise: str, cluster: SlurmCluster | None = None) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{otherwise}\n{cluster.logs() if cluster else ''}"
        time.sleep(0.05)
