"""A run on Slurm as a checked value."""

import os
import re
from dataclasses import dataclass

from trireme.errors import InvalidJob

BACKENDS = ("tensorflow", "jax", "torch")
MAX_TASKS = 100_000
SHORTEST_GRACE_S = 5

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MEMORY = re.compile(r"(?P<amount>[1-9]\d{0,8})(?P<unit>[KMGT]?)")
_MIB = {"K": 1 / 1024, "M": 1, "": 1, "G": 1024, "T": 1024**2}
_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d\d?(:\d\d){0,2}")
_OPTION = re.compile(r"-[A-Za-z]\S*|--[a-z][a-z-]*(=\S+)?")
# What the script says itself, and recovery is built on.
_OWN = (
    "--ntasks",
    "-n",
    "--job-name",
    "-J",
    "--requeue",
    "--no-requeue",
    "--signal",
    "--output",
    "-o",
    "--open-mode",
)


@dataclass(frozen=True)
class SlurmJob:
    """What `trireme render --on slurm` was asked for.

    Args:
        name: the job's name.
        target: the script's path, which all nodes see, or the module's name.
        arguments: what the script finds in `sys.argv[1:]`.
        is_module: whether `target` is run as `python -m` does.
        workers: number of workers.
        gpus: GPUs of each worker; with tensorflow and torch a task for each of them.
        cpu: cores of each task, or empty.
        memory: memory of each task, as Slurm writes it (`"16G"`), or empty.
        backup: a folder that all nodes see, or a URL, for backups.
        backup_every: steps between two backups; 0: one for each epoch.
        max_restarts: how often the workers are started again after a failure.
        partition: where to run; empty for the default one.
        time_limit: as `sbatch --time` takes it; empty for the partition's.
        options: more options of `sbatch`, as one word each.
        grace_s: seconds that workers get to save in before the time limit.
        backend: the Keras backend.
        log_dir: folder for all output; empty for `folder`.
        python: the interpreter on the nodes.
        folder: where the script runs.

    Raises:
        InvalidJob: this cannot be submitted; the message lists every mistake.
    """

    name: str
    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    workers: int = 1
    gpus: int = 0
    cpu: str = ""
    memory: str = ""
    backup: str = ""
    backup_every: int = 0
    max_restarts: int = 3
    partition: str = ""
    time_limit: str = ""
    options: tuple[str, ...] = ()
    grace_s: int = 120
    backend: str = "tensorflow"
    log_dir: str = ""
    python: str = "python3"
    folder: str = "."

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise InvalidJob(problems)

    @property
    def gpus_per_task(self) -> int:
        """JAX drives all devices of a worker from one task; the others need a task for each device."""
        return self.gpus if self.backend == "jax" else min(self.gpus, 1)

    @property
    def num_tasks(self) -> int:
        return self.workers if self.backend == "jax" else self.workers * max(self.gpus, 1)

    @property
    def memory_per_cpu_mib(self) -> int:
        """Slurm counts memory by core or by node, never by task. 0: none was asked for."""
        match = _MEMORY.fullmatch(self.memory)
        if match is None:
            return 0
        mib = int(match["amount"]) * _MIB[match["unit"]]
        return max(1, -int(-mib // int(self.cpu or 1)))


def _problems(job: SlurmJob) -> list[str]:
    """Everything wrong with a job, each in words and with what to type."""
    limits = {
        "--workers": (job.workers, 1, MAX_TASKS),
        "--gpus": (job.gpus, 0, 64),
        "--backup-every": (job.backup_every, 0, 10**9),
        "--max-restarts": (job.max_restarts, 0, 10**6),
        "--grace": (job.grace_s, SHORTEST_GRACE_S, 24 * 3600),
    }
    problems = [
        f"{option} {value!r}: expected a whole number from {low} to {high}"
        for option, (value, low, high) in limits.items()
        if type(value) is not int or not low <= value <= high
    ]
    if not _NAME.fullmatch(job.name):
        problems.append(f"--name {job.name!r}: expected letters, digits, '.', '_' and '-', like --name train")
    if job.backend not in BACKENDS:
        problems.append(f"--backend {job.backend!r}: expected one of {', '.join(BACKENDS)}")
    if job.cpu and not (job.cpu.isascii() and job.cpu.isdigit() and int(job.cpu)):
        problems.append(f"--cpu {job.cpu!r}: Slurm gives whole cores, like --cpu 4")
    if job.memory and not _MEMORY.fullmatch(job.memory):
        problems.append(f"--memory {job.memory!r}: expected an amount as Slurm writes it, like --memory 16G")
    if job.partition and not _NAME.fullmatch(job.partition):
        problems.append(f"--partition {job.partition!r}: expected a name that `sinfo` lists")
    if job.time_limit and not _TIME.fullmatch(job.time_limit):
        problems.append(
            f"--time-limit {job.time_limit!r}: expected minutes, hours:minutes:seconds or days-hours, "
            "like --time-limit 8:00:00"
        )
    return [*problems, *_target_problems(job), *_option_problems(job), *_text_problems(job)]


def _target_problems(job: SlurmJob) -> list[str]:
    if not job.target:
        return ["there is nothing to run: add a script, or -m and a module's name, and then its arguments"]
    if not job.is_module and not os.path.isfile(os.path.join(job.folder, job.target)):
        return [f"there is no script {job.target} in {job.folder}: expected one that all nodes see"]
    return []


def _option_problems(job: SlurmJob) -> list[str]:
    problems = []
    for option in job.options:
        if not _OPTION.fullmatch(option) or any(sign in option for sign in "\"'#\\"):
            problems.append(
                f"--sbatch {option!r}: expected one option as one word, like --sbatch=--constraint=h200"
            )
        elif option.partition("=")[0] in _OWN or option[:2] in _OWN:
            problems.append(
                f"--sbatch {option}: the script says this itself, and the run depends on it: leave it out"
            )
    return problems


def _text_problems(job: SlurmJob) -> list[str]:
    """Paths that stand in #SBATCH lines, in which Slurm replaces some signs."""
    return [
        f"{what} {path!r} has white space, a quote, '%' or '\\' in it, which Slurm would read as something else: "
        "use another folder"
        for what, path in (("the working folder", job.folder), ("--log-dir", job.log_dir))
        if re.search(r"[\s\"'%\\#]", path)
    ]
