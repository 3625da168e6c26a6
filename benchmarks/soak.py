"""Does a run that is killed again and again end with the numbers of a run that nobody disturbed?

Trains `soak_training.py` once in peace, and then, under `trireme run --backup ... --max-restarts ...`, with `kill -9`
of a random worker at random moments: while it starts, compiles, trains, writes a backup or ends. A run that ends
is compared with the undisturbed one, and another begins, until all kills are done.

    python benchmarks/soak.py [--kills 50] [--backend tensorflow] [--replicas 2] [--backup-every 10] [--seed 0]
        [--epochs 10] [--output FILE]

Prints JSON: restarts, steps trained twice, seconds from each failure to the next first step, and the largest difference
of any weight and any value of the history. Exits with 1 if a run did not end well, if there were not as many restarts
as kills, or if a number differs by more than 1e-6.
"""

import argparse
import contextlib
import datetime
import itertools
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TRAINING = pathlib.Path(__file__).with_name("soak_training.py")
WORKER = b"trireme.launch.bootstrap"
LARGEST_DIFFERENCE = 1e-6
# No attempt may take that long: then something is stuck.
LONGEST_RUN_S = 600.0
# Of the time that an undisturbed run takes from its start to its end: nearly each attempt meets a kill somewhere.
_KILL_WITHIN = 0.9

_KILLED = re.compile(r"worker \d+ of \d+ \(pid \d+(?:, step (\d+))?\) was killed by SIGKILL")
_BEFORE_FIRST_STEP = "was killed by SIGKILL before its first step; starting again"
_RESUMED = re.compile(r"going on from .* after (\d+) steps")
_FINISHED = "only later ones are left to train"
_FIRST_STEP = re.compile(r"first step (\S+) s after")


@dataclass
class Run:
    """One training under the launcher.

    Attributes:
        output: what the launcher and worker 0 said.
        took_s: seconds from its start to its end.
        num_kills: how often a worker of it was killed.
        result: what the training left.
    """

    output: str
    took_s: float
    num_kills: int
    result: dict[str, Any]


def lost_steps(output: str) -> list[int]:
    """Returns for each kill how many steps were trained again."""
    lost, reached = [], 0
    attempts = output.split("starting again")
    for number, (before, after) in enumerate(itertools.pairwise(attempts), 2):
        reached = max(reached, *(int(step or 0) for step in _KILLED.findall(before)[-1:]), 0)
        resumed = _RESUMED.search(after)
        trains = number == len(attempts) or any(_KILLED.findall(after))
        if not (resumed or trains) or _FINISHED in after:
            # It was killed before it had read a backup, which the next attempt does; or nothing was left to train.
            lost.append(0)
            reached = 0 if _FINISHED in after else reached
        else:
            lost.append(max(0, reached - (int(resumed[1]) if resumed else 0)))
            reached = 0
    return lost


def starts_in_vain(output: str) -> int:
    """Returns how many of the last attempts in a row were killed before their first step."""
    attempts = [line for line in output.splitlines() if "starting again" in line]
    return sum(1 for _ in itertools.takewhile(lambda line: _BEFORE_FIRST_STEP in line, reversed(attempts)))


def largest_difference(undisturbed: dict[str, Any], disturbed: dict[str, Any]) -> float:
    """Returns the largest difference of any weight or value of the history; infinity where some are missing."""
    histories = undisturbed["history"], disturbed["history"]
    lengths = [{name: len(values) for name, values in history.items()} for history in histories]
    if lengths[0] != lengths[1]:
        return float("inf")
    pairs = [*zip(undisturbed["weights"], disturbed["weights"], strict=True)]
    pairs += [(values, histories[1][name]) for name, values in histories[0].items()]
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)


def workers_of(launcher: int) -> list[int]:
    """Returns the process ids of the launcher's workers."""
    found = []
    with contextlib.suppress(OSError):
        children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        for child in children:
            with contextlib.suppress(OSError):
                if WORKER in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


class Soak:
    """All runs of one soak."""

    def __init__(self, arguments: argparse.Namespace, folder: pathlib.Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._chance = random.Random(arguments.seed)

    def undisturbed(self) -> Run:
        """Trains in peace."""
        return self._run("undisturbed", [], 0, 0.0)

    def disturbed(self, number: int, num_kills: int, longest_s: float) -> Run:
        """Trains while workers are killed, up to `num_kills` times, each within `longest_s` of the kill before."""
        backup = ["--backup", str(self._folder / f"backup-{number}")]
        backup += ["--backup-every", str(self._arguments.backup_every), "--max-restarts", str(num_kills)]
        return self._run(f"disturbed-{number}", backup, num_kills, longest_s)

    def _run(self, name: str, options: Sequence[str], num_kills: int, longest_s: float) -> Run:
        arguments = self._arguments
        result, log = self._folder / f"{name}.json", self._folder / f"{name}.log"
        count = str(arguments.replicas)
        command = [sys.executable, "-m", "trireme", "run", "--strategy", "mirrored", "--backend"]
        command += [arguments.backend, "--replicas", count, "--workers", count, *options]
        began_s = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, str(TRAINING), str(result), str(arguments.epochs)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TRIREME_SEED": str(arguments.seed)},
            )
            try:
                self._kill_workers(process, log, num_kills, longest_s)
                process.wait(LONGEST_RUN_S)
            finally:
                process.terminate()
                process.wait()
        took_s = time.monotonic() - began_s
        said = log.read_text(errors="replace")
        if process.returncode or not result.exists():
            raise SystemExit(f"{name} ended with exit code {process.returncode}:\n{said}")
        # One that was hit when it had ended already does not count.
        return Run(said, took_s, len(_KILLED.findall(said)), json.loads(result.read_text()))

    def _kill_workers(
        self, process: subprocess.Popen[bytes], log: pathlib.Path, num_kills: int, longest_s: float
    ) -> None:
        killed: set[int] = set()
        while len(killed) < num_kills:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # On a machine that has become slower, kills would hit nothing but starts.
                slowness = 1.5 ** starts_in_vain(log.read_text(errors="replace"))
                process.wait(self._chance.uniform(0.2, slowness * longest_s))
                break
            # Right after a kill there may be none, or only those that are about to be ended.
            group = [pid for pid in workers_of(process.pid) if pid not in killed]
            if len(group) == self._arguments.replicas:
                victim = self._chance.choice(group)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed.add(victim)


def soak(arguments: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Returns the report."""
    from scaling import machine

    all_runs = Soak(arguments, folder)
    undisturbed = all_runs.undisturbed()
    runs: list[Run] = []
    while (left := arguments.kills - sum(run.num_kills for run in runs)) > 0:
        runs.append(all_runs.disturbed(len(runs), left, _KILL_WITHIN * undisturbed.took_s))
        print(f"run {len(runs)}: {runs[-1].num_kills} kills", file=sys.stderr, flush=True)
    lost = [steps for run in runs for steps in lost_steps(run.output)]
    # A soak may be so short that each kill hit a start.
    first_step_s = [float(text) for run in runs for text in _FIRST_STEP.findall(run.output)] or [float("nan")]
    extra_s = sum(run.took_s - undisturbed.took_s for run in runs)
    return {
        "backend": arguments.backend,
        "replicas": arguments.replicas,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {**machine(), "load_average_after": list(os.getloadavg())},
        "steps": int(undisturbed.result["steps"]),
        "backup_every": arguments.backup_every,
        "kills": sum(run.num_kills for run in runs),
        "runs": len(runs),
        "kills_before_the_first_step": sum(run.output.count(_BEFORE_FIRST_STEP) for run in runs),
        "restarts": sum(run.output.count("starting again") for run in runs),
        "lost_steps": {"mean": round(statistics.mean(lost), 1), "most": max(lost)},
        "restart_to_first_step_s": {
            "median": round(statistics.median(first_step_s), 1),
            "longest": max(first_step_s),
        },
        "undisturbed_s": round(undisturbed.took_s, 1),
        "time_lost_per_kill_s": round(extra_s / arguments.kills, 1),
        "largest_difference": [largest_difference(undisturbed.result, run.result) for run in runs],
    }


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--backend", choices=("tensorflow", "jax", "torch"), default="tensorflow")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--backup-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=pathlib.Path, help="where to write the report, besides printing it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trireme-soak-") as folder:
        report = soak(arguments, pathlib.Path(folder))
    text = json.dumps(report, indent=1) + "\n"
    print(text, end="")
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text)
    is_good = report["restarts"] == report["kills"] == arguments.kills
    return 0 if is_good and max(report["largest_difference"]) <= LARGEST_DIFFERENCE else 1


if __name__ == "__main__":
    sys.exit(main())
