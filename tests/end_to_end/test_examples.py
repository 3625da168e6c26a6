"""The examples run as their docstrings say, and learn."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
TRIREME = [sys.executable, "-m", "trireme"]
MINIMUM_TEST_ACCURACY = 0.97

backends = pytest.mark.parametrize("backend", ["tensorflow", "jax"])


def run(command: list[str], backend: str) -> str:
    environ = os.environ | {"KERAS_BACKEND": backend}
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@backends
def test_digits_as_a_plain_script(backend, tmp_path):
    run([sys.executable, str(EXAMPLES / "digits.py"), "--save", str(tmp_path / "saved")], backend)
    results = json.loads((tmp_path / "saved" / "results.json").read_text())
    assert results["test_accuracy"] >= MINIMUM_TEST_ACCURACY
    assert (tmp_path / "saved" / "digits.keras").stat().st_size > 0


@backends
def test_demo_compares_two_replicas_with_one_device(backend):
    output = run([sys.executable, str(EXAMPLES / "demo.py")], backend)
    accuracies = re.findall(r"test accuracy (0\.\d+|1\.0+), ", output)
    assert len(accuracies) == 2
    assert min(map(float, accuracies)) >= MINIMUM_TEST_ACCURACY
    # In 230 steps Adam, which divides by the size of a gradient, blows up the last bit of those near zero; what it can
    # make of one bit is bounded by the learning rate, 3e-3.
    difference = float(re.search(r"difference between the two sets of weights: (\S+)", output)[1])
    assert difference < 1e-3


def test_the_recommender_learns_asynchronously_what_one_device_learns(tmp_path):
    script, path = str(EXAMPLES / "recommender.py"), tmp_path / "history.json"
    losses = {}
    for name, command in {
        "one device": [sys.executable, script, "--strategy", "one_device"],
        "servers": [*TRIREME, "run", "--workers", "2", "--servers", "1", script, "--by-rows"],
    }.items():
        run([*command, "--epochs", "4", "--save", str(path)], "tensorflow")
        losses[name] = json.loads(path.read_text())["val_loss"]
    assert losses["one device"][-1] < 0.8 * losses["one device"][0]
    assert losses["servers"][-1] < 1.03 * losses["one device"][-1]
