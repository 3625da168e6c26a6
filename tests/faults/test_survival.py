"""`trireme run` over everything that can happen to a worker, one thing after the other, to the right end."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.faults.test_resume import differences

SURVIVOR = pathlib.Path(__file__).with_name("survivor.py")
DEADLINE_S = 850
TIMEOUT_S = 40


@pytest.fixture
def train(tmp_path):
    """Runs the script on two workers; returns the exit code and what the launcher said."""

    def run(name, backend, *wrongs, options=(), faults=""):
        command = [sys.executable, "-m", "trireme", "run", "--strategy", "mirrored", "--backend", backend]
        command += ["--replicas", "2", "--workers", "2", "--timeout", str(TIMEOUT_S), *options]
        done = subprocess.run(
            [*command, str(SURVIVOR), str(tmp_path / f"{name}.json"), *wrongs],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={**os.environ, "TRIREME_SEED": "11", "TRIREME_FAULTS": faults},
        )
        return done.returncode, done.stderr

    return run


@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize(
    ("backend", "wrongs", "stuck"),
    [
        ("tensorflow", ["loop on 1 in 0", "blocked input in 1"], ["in on_train_batch_begin", "in wait"]),
        ("jax", [], ["stopped by a signal such as SIGSTOP"]),
    ],
)
def test_it_survives(train, tmp_path, backend, wrongs, stuck):
    backup = ["--backup", str(tmp_path / "backup"), "--backup-every", "3"]
    code, said = train("undisturbed", backend)
    assert code == 0, said

    # Stuck, killed with the newest backup damaged, and in the end a mistake that no restart mends.
    generation = len(wrongs)
    faults = [] if wrongs else ["stop(rank=1, step=5)"]
    generation += len(faults)
    faults += [
        f"kill(rank=1, step=11, generation={generation})",
        f"corrupt_backup(newest, generation={generation + 1})",
        f"raise_error(rank=0, step=13, generation={generation + 1})",
        f"raise_error(rank=0, step=13, generation={generation + 2})",
    ]
    options = [*backup, "--max-restarts", "9"]
    code, said = train("failed", backend, *wrongs, options=options, faults="; ".join(faults))
    assert code == 1, said
    assert len(re.findall(r"stuck: worker 1 \(pid \d+", said)) == generation, said
    assert said.count("stacks of worker 0") == generation
    for text in stuck:
        assert text in said
    assert "worker 1 of 2" in said and "was killed by SIGKILL" in said
    assert "is passed over" in said
    assert "rank 0 raised trireme.errors.InjectedFault (exit code 1) at step 13, as it did before" in said
    assert said.count("starting again") == generation + 2
    assert len(re.findall(r"first step \d+\.\d s after", said)) >= 2

    # SIGTERM, and once more while it saves.
    code, said = train(
        "preempted", backend, options=backup, faults="terminate(rank=1, step=14); terminate(rank=1, step=15)"
    )
    assert code == 143, said
    [step] = re.findall(r"saved before step (\d+) on SIGTERM", said)

    code, said = train("resumed", backend, options=backup)
    assert code == 0, said
    assert f"after {step} steps" in said
    results = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("undisturbed", "resumed")]
    assert not differences(*results, 1e-6)
