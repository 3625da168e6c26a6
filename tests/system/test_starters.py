"""`mpirun` and `torchrun` start a script as it is, and its processes train together."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = pathlib.Path(__file__).parent / "small_training.py"
PYTHON = [sys.executable, str(SCRIPT)]
STARTERS = {
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", *PYTHON],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT)],
}


def weights_of(command, folder, replicas):
    done = subprocess.run(
        [*command, str(folder)],
        env=os.environ | {"KERAS_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # Each of the processes knows that it is one of two.
    assert done.stdout.count(f"{replicas} replicas, loss") == replicas, done.stdout
    with np.load(folder / f"{replicas}.npz") as file:
        return [file[name] for name in file.files]


@pytest.fixture(scope="module")
def weights_of_one_process(tmp_path_factory):
    return weights_of(PYTHON, tmp_path_factory.mktemp("one"), 1)


@pytest.mark.parametrize("starter", STARTERS)
def test_it_starts_a_script_unchanged(starter, tmp_path, weights_of_one_process):
    for ours, theirs in zip(weights_of(STARTERS[starter], tmp_path, 2), weights_of_one_process, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
