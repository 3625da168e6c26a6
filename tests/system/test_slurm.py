"""A Slurm of two nodes trains, is preempted in the middle, requeues, and ends with the undisturbed weights."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np

from tests.system.slurm_cluster import SlurmCluster, slurm_cluster

SCRIPT = pathlib.Path(__file__).parent / "long_training.py"
TRIREME = (sys.executable, "-m", "trireme")


def wait_for_line(path: pathlib.Path, text: str, cluster: SlurmCluster, timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, (
            f"no {text!r} in {path}: {path.exists() and path.read_text()}\n{cluster.logs()}"
        )
        time.sleep(0.05)


def test_a_preempted_job_is_requeued_and_goes_on(tmp_path):
    work, daemons = tmp_path / "work", tmp_path / "slurm"
    work.mkdir()
    daemons.mkdir()
    alone = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(tmp_path / "alone.npz")], env=os.environ | {"KERAS_BACKEND": "jax"}
    )
    with alone, slurm_cluster(daemons) as cluster:
        said = cluster.run(
            *(*TRIREME, "run", "--on", "slurm", "--name", "small", "--workers", "2", "--backend", "jax"),
            *("--backup", "backup", "--grace", "30", "--sbatch=--ntasks-per-node=1", "--log-dir", "logs"),
            *(str(SCRIPT), str(work / "weights.npz")),
            cwd=work,
            stderr=subprocess.STDOUT,
        )
        number = int(said.partition("Slurm job ")[2].split()[0])
        log = work / "logs" / f"small-{number}" / "worker-0.log"
        wait_for_line(log, "epoch 2 begins", cluster)
        urgent = cluster.run(
            "sbatch",
            "--parsable",
            "--partition=high",
            "--nodes=2",
            "--exclusive",
            "--wrap=true",
            "--output=urgent.log",
            cwd=work,
        )
        cluster.wait_for(int(urgent), "COMPLETED")
        job = cluster.wait_for(number, "COMPLETED", "FAILED", "CANCELLED")
        text = log.read_text()
        assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("COMPLETED", "0:0", "1"), text
        assert text.count("epoch 0 begins") == 1, text
        assert alone.wait(60) == 0
    with np.load(work / "weights.npz") as ours, np.load(tmp_path / "alone.npz") as theirs:
        for name in theirs.files:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-6)
