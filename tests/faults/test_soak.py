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
    killed = "worker 1 of 2 (pid 17{}) was killed by SIGKILL\n"
    output = (
        killed.format(", step 14")
        + "starting again now\ngoing on from backup-1: epoch 0, batch 9, after 10 steps\n"
        + killed.format("")
        + "starting again in 1 s\ngoing on from backup-1: epoch 0, batch 9, after 10 steps\n"
        + killed.format(", step 22")
        + "starting again now\nno backup was there\n"
    )
    assert soak.lost_steps(output) == [4, 0, 22]


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
