import json
import subprocess
import sys

from tests.parameter_server.processes import ROOT


def test_the_benchmark_runs_and_reports_ratios():
    command = [
        sys.executable,
        "benchmarks/parameter_server_transport.py",
        "--mebibytes",
        "1",
        "--repeats",
        "2",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["bytes_each_way"] == 1 << 20
    assert all(report[name] > 0 for name in report if name.startswith("ratio"))
