"""The benchmark of backups runs, and its table is what it measured. Times are looked at by people, never here."""

import json
import pathlib
import subprocess
import sys

import pytest
from benchmarks.report import BEGIN, END, backup_rows, between_marks, server_rows, soak_rows, transport_rows

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
        "kills_before_the_first_step": 3,
        "runs": 2,
        "restarts": 50,
        "lost_steps": {"mean": 7.5, "most": 19},
        "restart_to_first_step_s": {"median": 6.1, "longest": 9.0},
        "undisturbed_s": 12.0,
        "time_lost_per_kill_s": 8.2,
        "largest_difference": [0.0, 1e-7],
    }
    rows = soak_rows([report])
    assert rows[2] == "| jax | 50, 3 | 2 | 50 | 7.5, 19 | 6.1 s, 9 s | 8.2 s | 1e-07 |"
    page = between_marks(f"a\n{BEGIN}\nold\n{END}\nb", "\n".join(rows))
    assert "old" not in page and page.startswith("a\n") and page.endswith("\nb")


def test_the_table_of_parameter_servers_has_the_median_of_all_rounds():
    speeds = {"fast alone": 40.0, "slow alone": 10.0, "together": 47.0, "synchronous": 20.0}
    result = {
        "date": "2026-01-02",
        "machine": {"cores": 2, "processor": "a processor", "system": "Linux"},
        "load_average_before": 0.25,
        "steps": [
            {"mlp": {"ratio": ratio, "target": 2.0}, "embedding": {"ratio": 1.5, "target": 2.0}}
            for ratio in (1.0, 3.0, 2.5)
        ],
        "slow": [{"steps_per_s": speeds, "ratio": 0.94, "target": 0.9}],
    }
    rows = server_rows(result)
    assert rows[2].endswith("| **2.50** | 1.00 | 3.00 | 2 ✓ |")
    assert rows[3].endswith("| **1.50** | 1.50 | 1.50 | 2 ✗ |")
    assert rows[4].endswith("| **0.94** | 0.94 | 0.94 | 0.9 ✓ |")
    assert rows[5] == "| the same, synchronously | 0.40 | 0.40 | 0.40 | |"


def test_the_table_of_the_transport_marks_what_is_too_slow():
    result = {
        "bytes_each_way": 64 << 20,
        "num_variables": 30,
        "ratio": 0.61,
        "ratio_with_sgd": 0.5,
        "ratio_encrypted": 0.2,
        "ratio_same_machine": 0.9,
    }
    rows = transport_rows(result)
    assert [row.split("|")[2:4] for row in rows[2:6]] == [
        [" **0.90** ", " 0.5 ✓ "],
        [" **0.61** ", " 0.5 ✓ "],
        [" **0.50** ", " 0.5 ✓ "],
        [" **0.20** ", " 0.5 ✗ "],
    ]
    assert rows[-1].startswith("64 MiB each way in 30 variables")
