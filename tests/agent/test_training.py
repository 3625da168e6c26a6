"""Two agents train a plain Keras script; one is killed in the middle, and the numbers are the undisturbed ones."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.agent.agents import TOKEN, free_port
from tests.faults import trainings
from tests.faults.test_resume import SEED, differences, run
from tests.faults.test_survival import SURVIVOR
from tests.launch.without_backend import is_alive, wait_for

DEADLINE_S = 200


class Machines:
    """Two agents on loopback, as somebody would start them by hand on two machines."""

    def __init__(self, folder, backend, faults):
        self.folder = folder
        self.rendezvous = f"127.0.0.1:{free_port()}"
        self.backend = backend
        self.environ = {
            **os.environ,
            "TRIREME_TOKEN": TOKEN,
            "TRIREME_SEED": str(SEED),
            "TRIREME_FAULTS": faults,
            "TRIREME_HEARTBEAT_S": "5",
        }
        self.workers = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
        self.processes = {}

    def start(self, machine):
        command = [sys.executable, "-m", "trireme", "worker", "--strategy", "multi_worker_mirrored"]
        command += ["--backend", self.backend, "--replicas", "1", "--max-restarts", "3"]
        command += ["--backup", str(self.folder / "backup"), "--backup-every", "2"]
        environ = {"TRIREME_RENDEZVOUS": self.rendezvous}
        if self.backend == "tensorflow":
            # As in pods: workers listen at the same ports in every generation.
            environ |= {"TRIREME_WORKERS": self.workers, "TRIREME_RANK": str(machine)}
        else:
            command += ["--machines", "2", "--machine", str(machine)]
        with open(self.folder / f"agent-{machine}.txt", "ab") as log:
            self.processes[machine] = subprocess.Popen(
                [*command, "--", str(SURVIVOR), str(self.folder)],
                env=self.environ | environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def output(self, machine):
        return (self.folder / f"agent-{machine}.txt").read_text(errors="replace")

    def stopped_worker_of(self, machine):
        """A process below an agent that a signal has stopped."""
        assert self.processes[machine].poll() is None, self.output(machine)
        return stopped_child(self.processes[machine].pid)

    def end(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize(("backend", "lost"), [("tensorflow", 0), ("jax", 1)])
def test_an_agent_killed_in_the_middle_changes_no_number(tmp_path, backend, lost):
    # The worker stands still at this step, so that its agent is killed there and nowhere else.
    machines = Machines(tmp_path, backend, f"stop(rank={lost}, step=12)")
    try:
        for machine in (0, 1):
            machines.start(machine)
        worker = wait_for(lambda: machines.stopped_worker_of(lost), "the worker has come to step 12")
        other = machines.processes[1 - lost]
        machines.processes[lost].send_signal(signal.SIGKILL)
        machines.processes[lost].wait()
        wait_for(lambda: not is_alive(worker), "the worker is gone with its agent")
        machines.start(lost)
        codes = [machines.processes[machine].wait(DEADLINE_S) for machine in (0, 1)]
    finally:
        machines.end()
    said = machines.output(0) + machines.output(1)
    assert codes == [0, 0], said
    assert machines.processes[1 - lost] is other
    assert f"rank {lost} disappeared" in machines.output(1 - lost), said
    # The last backup may not have been whole yet.
    [steps] = re.findall(r"going on from .* after (\d+) steps", said)
    assert 8 <= int(steps) <= 12
    result = json.loads((tmp_path / "result.json").read_text())
    undisturbed = run(trainings.undisturbed_survivor, 2, backend, SEED)[0]
    assert not differences(undisturbed, result, 1e-6)


def stopped_child(pid):
    """A descendant that a signal has stopped."""
    from trireme.launch.linux import children_of, is_stopped

    for child in children_of(pid):
        found = child if is_stopped(child) else stopped_child(child)
        if found:
            return found
    return None
