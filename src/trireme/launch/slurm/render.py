"""A job as the batch script that `sbatch` is given: a pure function of the job."""

import os
import shlex

from trireme.cluster.machine import KERAS_BACKEND
from trireme.launch.slurm.spec import SlurmJob
from trireme.launch.variables import BACKEND, BACKUP, BACKUP_EVERY

RENDEZVOUS_TIMEOUT_S = 600
# Of the time before the limit, for Slurm to deliver a signal (it looks once a minute) and to end what is left.
SIGNAL_MARGIN_S = 90

_SCRIPT = """\
#!/bin/bash
{options}

# Trireme run {name}: {tasks} on {backend}.
# submit: sbatch THIS_FILE
# watch:  squeue --name {name}
# end:    scancel --name {name}
set -u
logs={logs}/{name}-"$SLURM_JOB_ID"
mkdir -p "$logs"
{exports}
# Known to the tasks of this job only: nobody else can join the run.
TRIREME_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
export TRIREME_TOKEN

# Before the time limit, workers save, and the job goes back into the queue to go on from there.
time_is_up=
trap 'time_is_up=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
# Preempted: Slurm tells the workers and requeues by itself. This script has to outlive them, or they are killed.
trap : TERM
(
    trap '' TERM
    exec srun --distribution=block --kill-on-bad-exit=0 --wait=0 \\
        --output="$logs/worker-%t.log" --open-mode=append \\
        {command}
) &
step=$!
code=0
wait "$step" || code=$?
# A signal ends `wait` before what it waits for has ended.
while kill -0 "$step" 2>/dev/null; do
    code=0
    wait "$step" || code=$?
done
if [ -n "$time_is_up" ] && [ "$code" -eq 143 ]; then
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def render(job: SlurmJob) -> str:
    """The batch script. Equal jobs give equal text."""
    return _SCRIPT.format(
        options="\n".join(f"#SBATCH {option}" for option in _options(job)),
        name=job.name,
        tasks=f"{job.num_tasks} worker{'s' if job.num_tasks > 1 else ''}",
        backend=job.backend,
        logs=shlex.quote(log_dir(job)),
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in _environment(job).items()),
        command=shlex.join(_command(job)),
    )


def log_dir(job: SlurmJob) -> str:
    """The folder that has to be there before the job starts: Slurm makes none."""
    return os.path.join(job.folder, job.log_dir) if job.log_dir else job.folder


def _options(job: SlurmJob) -> list[str]:
    asked_for = {
        "--cpus-per-task": job.cpu,
        "--gpus-per-task": str(job.gpus_per_task) if job.gpus else "",
        "--mem-per-cpu": f"{job.memory_per_cpu_mib}M" if job.memory else "",
        "--partition": job.partition,
        "--time": job.time_limit,
    }
    return [
        f"--job-name={job.name}",
        f"--ntasks={job.num_tasks}",
        *(f"{option}={value}" for option, value in asked_for.items() if value),
        f"--chdir={job.folder}",
        f"--output={os.path.join(log_dir(job), job.name)}-%j.log",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{job.grace_s + SIGNAL_MARGIN_S}",
        *job.options,
    ]


def _environment(job: SlurmJob) -> dict[str, str]:
    return {
        "TRIREME_RUN": job.name,
        BACKEND: job.backend,
        KERAS_BACKEND: job.backend,
        **({BACKUP: job.backup} if job.backup else {}),
        **({BACKUP_EVERY: str(job.backup_every)} if job.backup and job.backup_every else {}),
        "TRIREME_RESTARTED_BY": "agent",
        "TRIREME_MAX_RESTARTS": str(job.max_restarts),
        "TRIREME_RENDEZVOUS_TIMEOUT_S": str(RENDEZVOUS_TIMEOUT_S),
        "TRIREME_GRACE_S": str(job.grace_s),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def _command(job: SlurmJob) -> list[str]:
    target = ["-m", job.target] if job.is_module else [job.target]
    return [job.python, "-m", "trireme", "worker", "--", *target, *job.arguments]
