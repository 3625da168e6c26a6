import json
import os
import subprocess
import sys

import pytest

from trireme.cli.explain import describe_backend, describe_machine, describe_run
from trireme.cluster import machine

WORKERS = ["10.0.0.1:2222", "10.0.0.2:2222"]
TF_CONFIG = json.dumps({"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": 1}})
PLAIN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def explain(**environ):
    """What `trireme explain` prints in an environment of its own."""
    return subprocess.run(
        [sys.executable, "-m", "trireme", "explain"],
        env={**PLAIN, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_four_questions_on_a_plain_machine(tmp_path):
    done = explain(HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "Cluster",
        "  This process: worker 0 of 1, by default (no variable describes a cluster)",
        "Machine",
        "Keras",
        "  backend: tensorflow (from Keras' default)",
        "A run here",
    ):
        assert line in done.stdout.splitlines()
    assert f"CPU cores: {machine.num_cpu_cores()}" in done.stdout
    assert "MirroredStrategy()" in done.stdout


def test_a_worker_of_a_cluster():
    done = explain(TF_CONFIG=TF_CONFIG, KERAS_BACKEND="tensorflow", CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 0
    assert (
        "  This process: worker 1 of 2, worker 0 at 10.0.0.1:2222, from TF_CONFIG" in done.stdout.splitlines()
    )
    # A line of the terminal's width would cut the value apart.
    assert f"TF_CONFIG={TF_CONFIG}" in done.stdout
    assert "starts worker 1 of the 2 workers that TF_CONFIG tells of, with 1 replica each" in done.stdout


def test_a_broken_environment_is_explained_and_not_failed():
    done = explain(TF_CONFIG="{")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nobody knows, because TF_CONFIG cannot be read" in done.stdout
    assert "cannot start: TF_CONFIG describes no cluster" in done.stdout


def test_nothing_in_the_environment_is_taken_for_markup():
    assert "TF_CONFIG=[bold]{" in explain(TF_CONFIG="[bold]{").stdout


@pytest.fixture
def gpus(monkeypatch):
    """Makes this a machine with so many GPUs, and the installed frameworks builds for them, or not."""

    def make(count, can_use_gpus=True):
        monkeypatch.setattr(machine, "num_installed_gpus", lambda: count)
        monkeypatch.setattr(machine, "can_use_gpus", lambda backend, environ: can_use_gpus)

    return make


@pytest.mark.parametrize(
    ("count", "environ", "words"),
    [
        (0, {"KERAS_BACKEND": "tensorflow"}, ["1 replica on the CPU", "trireme run --replicas N train.py"]),
        (1, {"KERAS_BACKEND": "tensorflow"}, ["1 replica on the GPU"]),
        (4, {"KERAS_BACKEND": "tensorflow"}, ["4 replicas, one on each GPU", "4 worker processes"]),
        (4, {"KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "0,1"}, ["2 replicas, one on each GPU"]),
        (4, {"KERAS_BACKEND": "jax"}, ["4 replicas on 4 GPU devices", "one jax process drives"]),
        (
            0,
            {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_force_host_platform_device_count=3"},
            ["3 replicas on 3 CPU devices"],
        ),
        (0, {"KERAS_BACKEND": "theano"}, ["cannot start", "'theano'"]),
    ],
)
def test_what_a_run_would_do(gpus, count, environ, words):
    gpus(count)
    text = describe_run(environ)
    for word in words:
        assert word in text


def test_machine(gpus):
    gpus(4)
    text = describe_machine({"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "3"})
    assert text.splitlines()[1:] == ["GPUs: 2 visible of 4", "CUDA_VISIBLE_DEVICES=0,1", "OMP_NUM_THREADS=3"]


def test_machine_with_a_quota(gpus, monkeypatch):
    gpus(0)
    monkeypatch.setattr(machine, "cpu_quota", lambda: 1.5)
    allowed = len(os.sched_getaffinity(0))
    assert f"CPU cores: 1 (a quota of 1.5 on {allowed} cores)" in describe_machine({})


def test_where_the_backend_comes_from(tmp_path, gpus):
    gpus(0)
    environ = {"HOME": str(tmp_path)}
    assert describe_backend(environ) == "backend: tensorflow (from Keras' default)"
    (tmp_path / ".keras").mkdir()
    file = tmp_path / ".keras" / "keras.json"
    file.write_text('{"backend": "jax"}')
    assert describe_backend(environ) == f"backend: jax (from {file})"
    assert describe_backend({**environ, "KERAS_BACKEND": "torch"}).startswith(
        "backend: torch (from KERAS_BACKEND)"
    )


def test_a_backend_that_does_not_fit_the_machine(gpus, monkeypatch):
    gpus(2, can_use_gpus=False)
    assert "cannot use the GPUs of this machine" in describe_backend({"KERAS_BACKEND": "jax"})
    monkeypatch.setattr(machine, "is_installed", lambda backend: False)
    assert "pip install 'keras-trireme[jax]'" in describe_backend({"KERAS_BACKEND": "jax"})
