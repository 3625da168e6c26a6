"""`trireme run` over everything that can happen to a worker, one thing after the other, to the right end."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.faults import trainings
from tests.faults.test_resume import BACKENDS, SEED, differences, run

SURVIVOR = pathlib.Path(__file__).with_name("survivor.py")
DEADLINE_S = 280
TIMEOUT_S = 20

# What goes wrong with worker 1 in the first start: by the script, by the fault plan; and what the report shows of it.
# While one is stuck, backups are written to their end, so that the newest can be damaged and there is one before.
# On JAX the soak kills workers.
CORRUPT = "corrupt_backup(newest, generation=1)"
FAILURES = {
    "tensorflow": (
        ["blocked input", "1", "0"],
        CORRUPT,
        ["stuck: worker 1 (pid", "step 5", "stacks of worker 0"],
    ),
    "jax": (
        [],
        f"stop(rank=1, step=5); {CORRUPT}",
        ["stuck: worker 1 (pid", "a signal such as SIGSTOP", "stacks of worker 0"],
    ),
    "torch": ([], "kill(rank=1, step=5)", ["worker 1 of 2 (pid", "step 5", "was killed by SIGKILL"]),
}


@pytest.fixture
def start(tmp_path):
    """Starts the script on two workers; what still runs at the end is killed."""
    processes = []

    def start(backend, *words, options=(), faults=""):
        command = [sys.executable, "-m", "trireme", "run", "--strategy", "mirrored", "--backend", backend]
        command += ["--replicas", "2", "--workers", "2", "--timeout", str(TIMEOUT_S)]
        command += ["--backup", str(tmp_path / "backup"), "--backup-every", "2", *options]
        process = subprocess.Popen(
            [*command, str(SURVIVOR), str(tmp_path), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TRIREME_SEED": str(SEED), "TRIREME_FAULTS": faults},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        with process:
            process.kill()


def wait_for_file(path, process):
    give_up_s = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < give_up_s, f"no {path}"
        time.sleep(0.02)


@pytest.mark.timeout(3 * DEADLINE_S)
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_survives(start, tmp_path, backend):
    words, faults, shown = FAILURES[backend]
    # After the failure the run is asked to end, twice, as are the workers.
    process = start(
        backend,
        *words,
        *("sigterm", "0", "1"),
        options=["--max-restarts", "5"],
        faults=faults,
    )
    for told in ("ready", "heard"):
        wait_for_file(tmp_path / told, process)
        process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 143, said
    for text in shown:
        assert text in said
    assert ("is passed over" in said) == (CORRUPT in faults)
    assert said.count("starting again now") == 1
    assert len(re.findall(r"first step \d+\.\d s after", said)) == 1
    # A worker that a signal held may go on when the launcher ends the attempt, and all of them save then already.
    *_, step = re.findall(r"saved before step (\d+) on SIGTERM", said)
    assert int(step) in range(9, 21), "not in the middle of the training"

    process = start(backend)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, said
    assert f"after {step} steps" in said
    undisturbed = run(trainings.undisturbed_survivor, 2, backend, SEED)[0]
    assert not differences(undisturbed, json.loads((tmp_path / "result.json").read_text()), 1e-6)
