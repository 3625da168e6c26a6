"""Jobs that together use every option of `trireme render --on slurm`; their scripts lie in `golden/`.

`python -m tests.slurm.jobs` renders them again, after a change that is meant to change them.
"""

import pathlib
from typing import Any

from trireme.launch.slurm.render import render
from trireme.launch.slurm.spec import SlurmJob

GOLDEN = pathlib.Path(__file__).parent / "golden"


def job(**options: Any) -> SlurmJob:
    """A job with as little said as can be, but for the given options."""
    least = {"name": "train", "target": "package.train", "is_module": True, "folder": "/shared/me"}
    return SlurmJob(**least | options)


JOBS = {
    "smallest": job(),
    "four_tensorflow_workers_two_gpus": job(
        workers=4,
        gpus=2,
        cpu="8",
        memory="64G",
        backup="/shared/backups/train",
        partition="gpu",
        time_limit="8:00:00",
        options=("--constraint=h200", "--account=team-a"),
        grace_s=300,
        log_dir="logs",
        arguments=("--epochs=3", "--name", "it's $HOME"),
        python="/opt/python/bin/python",
    ),
    "jax_drives_all_gpus": job(workers=2, gpus=8, backend="jax", memory="1000K"),
}

if __name__ == "__main__":
    for name, one in JOBS.items():
        (GOLDEN / f"{name}.sh").write_text(render(one), encoding="utf-8")
