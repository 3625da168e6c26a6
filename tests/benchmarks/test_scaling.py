"""The benchmark runs, and writes what its page is made of. Times are looked at by people, never here."""

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
from benchmarks.report import BEGIN, END, plot, with_results

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "scaling.py"
CONTESTANTS = {
    "resnet": {"plain", "one_replica", "two_replicas", "pair", "peer"},
    "mlp": {"plain", "one_replica", "two_replicas", "pair", "peer"},
    "embedding": {"plain", "one_replica", "two_replicas"},
}


@pytest.mark.timeout(280)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_every_contestant_has_its_turns(backend, tmp_path):
    output = tmp_path / "folder that is made" / "result.json"
    command = [sys.executable, str(SCRIPT), "--backend", backend, "--quick", "--output", str(output)]
    # What one contestant has compiled, the next one need not: nobody looks at the times.
    environ = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())

    assert result["backend"] == backend and result["is_quick"] is True
    assert result["machine"]["cores"] >= 2
    assert {"python", "trireme", "keras", backend, "numpy"} <= result["versions"].keys()
    assert {name: set(part["contestants"]) for name, part in result["workloads"].items()} == CONTESTANTS
    for part in result["workloads"].values():
        for summary in part["contestants"].values():
            assert len(summary["rounds"]) == 2 and min(summary["rounds"]) > 0
    for entry in result["figures"]:
        assert len(entry["rounds"]) == 2
        ratio = entry["ratio"]
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"] < math.inf
    assert [line.partition(" = ")[0] for line in done.stdout.splitlines()] == [
        f"{entry['workload']}: {entry['numerator']} / {entry['denominator']}" for entry in result["figures"]
    ]

    page = with_results(f"{BEGIN}\n{END}", [result])
    assert page.count(f"scaling-{backend}.png") == 1
    plot(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_contestant_that_fails_is_told_with_its_output_and_leaves_nothing(tmp_path):
    (tmp_path / "keras.py").write_text("raise ImportError('no keras today')")
    command = [sys.executable, str(SCRIPT), "--backend", "jax", "--quick", "--output", str(tmp_path / "out")]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 1
    assert "plain ended with code 1" in done.stderr and "no keras today" in done.stderr


def test_a_quick_run_does_not_overwrite_results():
    command = [sys.executable, str(SCRIPT), "--backend", "jax", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--output FILE" in done.stderr
