"""The benchmark of backups runs, and its table is what it measured. Times are looked at by people, never here."""

import json
import pathlib
import subprocess
import sys

import pytest
from benchmarks.report import BEGIN, END, backup_rows, between_marks, soak_rows

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "backups.py"


@pytest.mark.timeout(280)
def test_a_run_with_backups_and_one_without_take_turns(tmp_path):
    output = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), "--backend", "torch", "--quick", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert set(result["workload"]["contestants"]) == {"two_replicas", "backed_up"}
    assert len(result["figure"]["rounds"]) == 2 and min(result["figure"]["rounds"]) > 0
    # Two copies of each of its weights, by SGD with momentum, of four bytes.
    assert result["backup_bytes"] > 8 * result["workload"]["num_parameters"]
    assert "resnet: backed_up / two_replicas = " in done.stdout
    assert f"| torch | **{result['figure']['ratio']['median']:.3f}** |" in backup_rows([result])[2]


def test_a_quick_run_does_not_overwrite_results():
    command = [sys.executable, str(SCRIPT), "--backend", "jax", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--output FILE" in done.stderr


def test_the_table_of_soaks_has_the_worst_of_all_runs():
    report = {
        "backend": "jax",
        "replicas": 2,
        "date": "2026-01-02T03:04:05",
        "machine": {"cores": 2, "load_average_after": [1.5, 1.0, 1.0]},
        "steps": 1000,
        "backup_every": 10,
        "kills": 50,
        "runs": 2,
        "restarts": 50,
        "lost_steps": {"mean": 7.5, "most": 19},
        "restart_to_first_step_s": {"median": 6.1, "longest": 9.0},
        "undisturbed_s": 12.0,
        "time_lost_per_kill_s": 8.2,
        "largest_difference": [0.0, 1e-7],
    }
    rows = soak_rows([report])
    assert rows[2] == "| jax | 50 | 2 | 50 | 7.5, 19 | 6.1 s, 9 s | 8.2 s | 1e-07 |"
    page = between_marks(f"a\n{BEGIN}\nold\n{END}\nb", "\n".join(rows))
    assert "old" not in page and page.startswith("a\n") and page.endswith("\nb")
