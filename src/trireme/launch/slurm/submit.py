"""Gives a rendered run to Slurm."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from trireme.errors import ClusterUnreachable, UsageError
from trireme.launch.slurm.render import log_dir, render
from trireme.launch.slurm.spec import SlurmJob

SUBMIT_TIMEOUT_S = 120.0


def submit(job: SlurmJob, environ: Mapping[str, str] | None = None) -> int:
    """Puts the job into Slurm's queue; its number.

    Raises:
        UsageError: there is no `sbatch` here.
        ClusterUnreachable: `sbatch` does not take the job; the message has its words.
    """
    environ = os.environ if environ is None else environ
    program = shutil.which("sbatch", path=environ.get("PATH"))
    if program is None:
        raise UsageError(
            "there is no `sbatch` on the PATH: type this on a machine from which jobs are submitted, or "
            "`trireme render --on slurm ...` to get the script"
        )
    os.makedirs(log_dir(job), exist_ok=True)
    done = subprocess.run(
        [program, "--parsable"],
        input=render(job),
        env=dict(environ),
        capture_output=True,
        text=True,
        timeout=SUBMIT_TIMEOUT_S,
    )
    # The number, and behind a semicolon the cluster's name where there are several.
    number = done.stdout.strip().partition(";")[0]
    if done.returncode or not number.isdecimal():
        raise ClusterUnreachable(f"sbatch did not take the job: {done.stderr.strip() or done.stdout.strip()}")
    return int(number)


def run(job: SlurmJob) -> int:
    """Submits the job and says where it can be watched; 0. Slurm runs it when there is room."""
    number = submit(job)
    base = os.path.join(log_dir(job), f"{job.name}-{number}")
    for line in (
        f"Slurm job {number} ({job.name}) is in the queue",
        f"watch: squeue --job {number}; tail -F {base}/worker-0.log",
        f"end:   scancel {number}",
    ):
        print(f"trireme: {line}", file=sys.stderr)
    return 0
