"""How much does a training that is backed up lose?

Two runs of the small ResNet with two replicas alternate: one as it is, one with `--backup FOLDER --backup-every 50`.
Each block has 50 steps, so one backup. Prints the ratio of their rows per second in every round and the time
that a backup costs; writes JSON, from which `report.py` makes its part of docs/fault_tolerance.md.

    python benchmarks/backups.py --backend tensorflow [--quick] [--output FILE]
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import tempfile
from dataclasses import replace
from typing import Any

from contestants import Contestant, contestants
from figures import Comparison, figure
from models import Workload, workloads
from referee import refereeing
from scaling import RESULTS, machine, measure

STEPS_PER_BACKUP = 50
NUM_ROUNDS = 7
LIMIT_S = 400
TARGET = 0.95


def entries_at(backend: str, folder: str, steps_per_backup: int, address: str) -> list[Contestant]:
    """Returns the two contestants: the same run, without and with backups."""
    [plain] = [entry for entry in contestants(backend, address) if entry.name == "two_replicas"]
    [command] = plain.commands
    position = command.index("run") + 1
    backup = ("--backup", folder, "--backup-every", str(steps_per_backup))
    words = ["backed_up" if word == plain.name else word for word in command]
    return [
        plain,
        replace(
            plain,
            name="backed_up",
            description=f"the same with a backup every {steps_per_backup} steps",
            commands=((*words[:position], *backup, *words[position:]),),
        ),
    ]


def run(backend: str, is_quick: bool) -> dict[str, Any]:
    """Returns the result."""
    resnet = workloads(backend, is_quick)["resnet"]
    num_steps, num_rounds = (4, 2) if is_quick else (STEPS_PER_BACKUP, NUM_ROUNDS)
    workload: Workload = replace(resnet, num_steps=num_steps, num_rounds=num_rounds, limit_s=LIMIT_S)
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="trireme-benchmark-") as folder:
        with refereeing(functools.partial(entries_at, backend, folder, num_steps)) as (referee, entries):
            measured = measure(referee, entries, "resnet", workload, is_quick)
        [newest] = sorted(pathlib.Path(folder).glob("*.data"))[-1:]
        num_bytes = newest.stat().st_size
    rounds = {name: summary["rounds"] for name, summary in measured["contestants"].items()}
    return {
        "backend": backend,
        "is_quick": is_quick,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {**machine(), "load_average_before": list(load_before)},
        "backup_bytes": num_bytes,
        "workload": measured,
        "figure": figure(Comparison("resnet", "backed_up", "two_replicas", TARGET), rounds),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("tensorflow", "jax", "torch"), required=True)
    parser.add_argument("--quick", action="store_true", help="few short blocks, to see that everything runs")
    parser.add_argument(
        "--output", type=pathlib.Path, help="default: benchmarks/results/backups-BACKEND.json"
    )
    arguments = parser.parse_args()
    if arguments.quick and arguments.output is None:
        parser.error("--quick measures nothing worth keeping: say where it goes, --output FILE")
    output = arguments.output or RESULTS / f"backups-{arguments.backend}.json"
    result = run(arguments.backend, arguments.quick)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
    ratio = result["figure"]["ratio"]
    print(
        f"resnet: backed_up / two_replicas = {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f}), "
        f"target {TARGET}"
    )


if __name__ == "__main__":
    main()
