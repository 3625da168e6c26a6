#!/bin/bash
#SBATCH --job-name=train
#SBATCH --ntasks=2
#SBATCH --gpus-per-task=8
#SBATCH --mem-per-cpu=1M
#SBATCH --chdir=/shared/me
#SBATCH --output=/shared/me/train-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@210

# Trireme run train: 2 workers on jax.
# submit: sbatch THIS_FILE
# watch:  squeue --name train
# end:    scancel --name train
set -u
logs=/shared/me/train-"$SLURM_JOB_ID"
mkdir -p "$logs"
export TRIREME_RUN=train
export TRIREME_BACKEND=jax
export KERAS_BACKEND=jax
export TRIREME_RESTARTED_BY=agent
export TRIREME_MAX_RESTARTS=3
export TRIREME_RENDEZVOUS_TIMEOUT_S=600
export TRIREME_GRACE_S=120
export PYTHONUNBUFFERED=1
export PYTHONFAULTHANDLER=1
# Known to the tasks of this job only: nobody else can join the run.
TRIREME_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export TRIREME_TOKEN

# Before the time limit, workers save, and the job goes back into the queue to go on from there.
time_is_up=
trap 'time_is_up=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
# Preempted: Slurm tells the workers and requeues by itself. This script has to outlive them, or they are killed.
trap : TERM
(
    trap '' TERM
    exec srun --distribution=block --kill-on-bad-exit=0 --wait=0 \
        --output="$logs/worker-%t.log" --open-mode=append \
        python3 -m trireme worker -- -m package.train
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
