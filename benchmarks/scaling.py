"""How fast is a strategy, compared with plain Keras, with the limit of the machine, and with Keras' own ways?

Every figure is a ratio of rows per second within one round of one run. All contestants stay alive; in each
round each of them trains one block while the others wait. Writes JSON; `report.py` makes the page and the plots.

    python benchmarks/scaling.py --backend tensorflow [--quick] [--output FILE]
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import platform
import sys
import time
from typing import Any

from contestants import Contestant, contestants
from figures import comparisons, contestant_summary, figure, spread
from models import Workload, workloads
from referee import Referee, busy_s, refereeing

import trireme
from trireme.cluster.machine import num_cpu_cores

RESULTS = pathlib.Path(__file__).with_name("results")


def measure(
    referee: Referee, entries: list[Contestant], name: str, workload: Workload, is_quick: bool
) -> Any:
    """Plays all rounds of one workload; returns its part of the results."""
    entries = [entry for entry in entries if name in entry.workloads]
    for entry in entries:
        begun = referee.begin(entry, name, is_quick, workload.num_steps)
    blocks: dict[str, list[Any]] = {entry.name: [] for entry in entries}
    other_cores = []
    deadline = time.perf_counter() + workload.limit_s
    for number in range(workload.num_rounds + 1):
        if number > 3 and time.perf_counter() > deadline:
            break
        began, busy, own = time.perf_counter(), busy_s(), 0.0
        # To and fro: a machine that gets slower or faster during a round favours nobody in the long run.
        for entry in entries if number % 2 else reversed(entries):
            block = referee.play(entry)
            own += sum(process["cpu_s"] for process in block)
            blocks[entry.name].append(block)
        other_cores.append((busy_s() - busy - own) / (time.perf_counter() - began))
        print(f"{name}: round {number} of {workload.num_rounds}", file=sys.stderr, flush=True)
    for entry in entries:
        referee.stop(entry)
    # The first round is practice: who has just compiled still fills caches.
    summaries = {
        entry: contestant_summary(played[1:], workload.num_steps, workload.global_batch)
        for entry, played in blocks.items()
    }
    return {
        "num_parameters": begun["num_parameters"],
        "global_batch": workload.global_batch,
        "steps_per_block": workload.num_steps,
        "cores_used_by_others": spread([max(0.0, cores) for cores in other_cores[1:]]),
        "contestants": summaries,
    }


def run(backend: str, is_quick: bool, output: pathlib.Path) -> dict[str, Any]:
    """Runs the whole benchmark of one backend; returns what is written as JSON, anew after each workload."""
    load_before = os.getloadavg()
    began = time.perf_counter()
    results: dict[str, Any] = {}
    with refereeing(functools.partial(contestants, backend)) as (referee, entries):
        for name, workload in workloads(backend, is_quick).items():
            results[name] = measure(referee, entries, name, workload, is_quick)
            document = {
                "backend": backend,
                "is_quick": is_quick,
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "took_s": round(time.perf_counter() - began, 1),
                "machine": {**machine(), "load_average_before": list(load_before)},
                "versions": {
                    "python": platform.python_version(),
                    "trireme": trireme.__version__,
                    **referee.versions,
                },
                "descriptions": {entry.name: entry.description for entry in entries},
                "workloads": results,
                "figures": [
                    figure(comparison, _rounds(results[comparison.workload]))
                    for comparison in comparisons(backend)
                    if comparison.workload in results
                ],
            }
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(document, indent=1) + "\n")
    return document


def _rounds(result: dict[str, Any]) -> dict[str, list[float]]:
    return {name: summary["rounds"] for name, summary in result["contestants"].items()}


def machine() -> dict[str, Any]:
    """Returns what the machine is, for whoever reads its times."""
    names = [
        line.partition(":")[2].strip()
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory_kib = int(pathlib.Path("/proc/meminfo").read_text().split()[1])
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": num_cpu_cores(),
        "memory_gib": round(memory_kib / 2**20),
        "system": platform.platform(terse=True),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("tensorflow", "jax"), required=True)
    parser.add_argument("--quick", action="store_true", help="few short blocks, to see that everything runs")
    parser.add_argument(
        "--output", type=pathlib.Path, help="default: benchmarks/results/scaling-BACKEND.json"
    )
    arguments = parser.parse_args()
    if arguments.quick and arguments.output is None:
        parser.error("--quick measures nothing worth keeping: say where it goes, --output FILE")
    if num_cpu_cores() < 2:
        parser.error(f"two replicas need two cores; this process may use {num_cpu_cores()}")
    output = arguments.output or RESULTS / f"scaling-{arguments.backend}.json"
    result = run(arguments.backend, arguments.quick, output)
    for entry in result["figures"]:
        ratio, target = entry["ratio"], entry["target"]
        print(
            f"{entry['workload']}: {entry['numerator']} / {entry['denominator']} = {ratio['median']:.3f} "
            f"({ratio['min']:.3f} to {ratio['max']:.3f})" + (f", target {target}" if target else "")
        )


if __name__ == "__main__":
    main()
