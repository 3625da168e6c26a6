"""The soak in short: three kills, and the numbers of an undisturbed run."""

import json
import pathlib
import subprocess
import sys

import pytest
from benchmarks import soak

SOAK = pathlib.Path(__file__).parents[2] / "benchmarks" / "soak.py"
DEADLINE_S = 280


@pytest.mark.timeout(DEADLINE_S + 10)
def test_three_kills_change_no_number():
    command = [sys.executable, str(SOAK), "--kills", "3", "--backend", "jax", "--epochs", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] == report["restarts"] == 3
    assert max(report["largest_difference"]) <= 1e-6
    assert 0 <= report["lost_steps"]["most"] <= report["steps"]


def test_lost_steps_are_those_trained_twice():
    killed = "worker 1 of 2 (pid 17{}) was killed by SIGKILL\nstarting again now\n"
    resumed = "going on from backup-1: epoch 0, batch 9, after 10 steps\n"
    output = [
        killed.format(", step 14"),
        resumed + killed.format(", step 18"),
        # This one was killed before it had read the backup.
        killed.format(""),
        resumed + killed.format(", step 99"),
        "backup-9 holds a training of 4 epochs; only later ones are left to train\n"
        + killed.format(", step 99"),
        "backup-9 holds a training of 4 epochs; only later ones are left to train\n",
    ]
    assert soak.lost_steps("".join(output)) == [4, 0, 8, 0, 0]
    assert soak.lost_steps(killed.format(", step 22") + "no backup was there\n") == [22]


def test_starts_in_vain_are_counted_from_the_end():
    in_vain = "trireme: rank 1 was killed by SIGKILL before its first step; starting again in 8 s, ...\n"
    in_training = "trireme: rank 0 was killed by SIGKILL at step 9; starting again in 1 s, ...\n"
    assert soak.starts_in_vain("worker 0 of 2\n") == 0
    assert soak.starts_in_vain(in_vain + in_training) == 0
    assert soak.starts_in_vain(in_vain + in_training + in_vain + "going on from\n" + in_vain) == 2


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"weights": [[1.0, 2.0]], "history": {"loss": [3.0]}}, 0),
        ({"weights": [[1.0, 2.5]], "history": {"loss": [3.25]}}, 0.5),
        ({"weights": [[1.0, 2.0]], "history": {"loss": [3.0, 2.0]}}, float("inf")),
    ],
)
def test_the_largest_difference_is_found(other, difference):
    assert soak.largest_difference({"weights": [[1.0, 2.0]], "history": {"loss": [3.0]}}, other) == difference
