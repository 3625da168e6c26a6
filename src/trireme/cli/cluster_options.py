"""The options that `trireme render` and `trireme run` share: what a cluster is asked for, and how a run survives."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from trireme.cli.script_command import words_of
from trireme.cluster.machine import keras_backend
from trireme.errors import InvalidJob

if TYPE_CHECKING:
    from trireme.launch.kubernetes.source import Source
    from trireme.launch.kubernetes.spec import KubernetesJob
    from trireme.launch.slurm.spec import SlurmJob

SYSTEMS = ("kubernetes", "slurm")
NUMBERS = {"workers": 1, "servers": 0, "gpus": 0, "grace": 120, "backup_every": 0, "max_restarts": 3}
# By parameter, the system that alone knows it, or nothing where all of them do.
ONLY_ON = {
    **dict.fromkeys(
        (
            "image",
            "backup_claim",
            "namespace",
            "node_selector",
            "toleration",
            "priority_class",
            "queue",
            "jobset",
            "overlay",
            "folder",
        ),
        "kubernetes",
    ),
    **dict.fromkeys(("partition", "time_limit", "sbatch"), "slurm"),
    **dict.fromkeys(("name", "gpus", "cpu", "memory"), ""),
}

_OPTIONS = (
    click.option(
        "--name",
        metavar="NAME",
        default="",
        help="The run's name: pods and the Slurm job are called after it.",
    ),
    click.option("--gpus", metavar="N", help="GPUs of each worker pod or task. Default: none."),
    click.option("--cpu", metavar="CORES", default="", help="Cores requested for each, like 4 or 500m."),
    click.option(
        "--memory", metavar="AMOUNT", default="", help="Memory of each, like 16Gi; on Slurm like 16G."
    ),
    click.option(
        "--backup",
        metavar="URL",
        default="",
        help="Where backups go and are gone on from: a folder, or a URL like gs://bucket/folder.",
    ),
    click.option(
        "--backup-every", metavar="N", help="Steps between two backups. Default: one for each epoch."
    ),
    click.option(
        "--max-restarts",
        metavar="R",
        help="Start again after a failure, up to R times. Default: 0, on a cluster 3.",
    ),
    click.option(
        "--grace", metavar="S", help="Seconds to save in after SIGTERM. Default: 10, on a cluster 120."
    ),
    click.option(
        "--image",
        metavar="IMAGE",
        default="",
        help="Kubernetes: image of all pods, with Trireme and the backend.",
    ),
    click.option("--servers", metavar="N", help="Parameter servers; on Kubernetes pods. Default: none."),
    click.option(
        "--backup-claim", metavar="CLAIM", default="", help="Kubernetes: PersistentVolumeClaim for backups."
    ),
    click.option(
        "--namespace", metavar="NAMESPACE", default="", help="Kubernetes. Default: the one kubectl is set to."
    ),
    click.option(
        "--node-selector",
        metavar="LABEL=VALUE",
        multiple=True,
        help="Kubernetes: only nodes with it. Repeatable.",
    ),
    click.option(
        "--toleration",
        metavar="TAINT",
        multiple=True,
        help="Kubernetes: KEY[=VALUE][:EFFECT] to be placed in spite of. Repeatable.",
    ),
    click.option(
        "--priority-class", metavar="CLASS", default="", help="Kubernetes: an existing PriorityClass."
    ),
    click.option(
        "--queue", metavar="QUEUE", default="", help="Kubernetes: the Kueue queue that admits the run."
    ),
    click.option("--jobset", is_flag=True, help="Kubernetes: a JobSet in place of Jobs."),
    click.option(
        "--overlay",
        metavar="FILE",
        multiple=True,
        help="Kubernetes: YAML merged into what is rendered. Repeatable.",
    ),
    click.option(
        "--folder", metavar="FOLDER", help="Kubernetes: ship this folder, up to 1 MiB, not the script alone."
    ),
    click.option("--partition", metavar="PARTITION", default="", help="Slurm: where to run."),
    click.option(
        "--time-limit", metavar="TIME", default="", help="Slurm: as sbatch --time takes it, like 8:00:00."
    ),
    click.option(
        "--sbatch",
        metavar="OPTION",
        multiple=True,
        help="Slurm: any option of sbatch, like --sbatch=--constraint=h200. Repeatable.",
    ),
)

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def cluster_options(function: _Command) -> _Command:
    """Adds the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def foreign_options(values: dict[str, Any], system: str) -> list[str]:
    """Options that were given and mean nothing on that system, or nothing without one, each in words."""
    return [
        f"--{name.replace('_', '-')} says something only with --on {home or ' or --on '.join(SYSTEMS)}"
        for name, home in ONLY_ON.items()
        if values[name] and (not system or home not in ("", system))
    ]


def kubernetes_run(
    ctx: click.Context, mistakes: list[str], run_id: str = ""
) -> tuple["KubernetesJob", list[dict[str, Any]]]:
    """The job that the command line asks for, and its objects under the overlays.

    Raises:
        InvalidJob: with the mistakes found before and its own, all at once.
    """
    from trireme.launch.kubernetes import render as rendering
    from trireme.launch.kubernetes.overlay import apply_overlays
    from trireme.launch.kubernetes.yaml_text import read_overlay

    mistakes = [*mistakes, *foreign_options(ctx.params, "kubernetes")]
    source = _source(ctx, mistakes)
    overlays = [one for path in ctx.params["overlay"] for one in _attempt(mistakes, read_overlay, path) or []]
    job = _kubernetes_job(ctx.params, source, mistakes, run_id)
    if job is None or mistakes:
        raise InvalidJob(mistakes)
    objects = apply_overlays(rendering.render(job), overlays)
    _warn_of_modules_left_behind(job.source, words_of(ctx).target or "")
    return job, objects


def slurm_run(ctx: click.Context, mistakes: list[str], log_dir: str = "") -> "SlurmJob":
    """The job that the command line asks for.

    Raises:
        InvalidJob: with the mistakes found before and its own, all at once.
    """
    from trireme.launch.slurm.spec import SlurmJob

    mistakes = [*mistakes, *foreign_options(ctx.params, "slurm")]
    words, values = words_of(ctx), ctx.params
    numbers = _numbers(values, mistakes)
    job = _attempt(
        mistakes,
        SlurmJob,
        name=values["name"],
        target=words.target or "",
        arguments=words.arguments,
        is_module=words.is_module,
        workers=numbers["workers"],
        gpus=numbers["gpus"],
        cpu=values["cpu"],
        memory=values["memory"],
        backup=values["backup"],
        backup_every=numbers["backup_every"],
        max_restarts=numbers["max_restarts"],
        partition=values["partition"],
        time_limit=values["time_limit"],
        options=tuple(values["sbatch"]),
        grace_s=numbers["grace"],
        backend=values["backend"] or keras_backend(os.environ),
        log_dir=log_dir,
        python=sys.executable,
        folder=os.getcwd(),
    )
    if job is None or mistakes:
        raise InvalidJob(mistakes)
    return job


def system_mistakes(system: str) -> list[str]:
    """What is wrong with the value of `--on`."""
    if system in SYSTEMS:
        return []
    said = f"--on {system!r}: expected" if system else "nothing says what to render for: add"
    return [f"{said} {' or '.join(f'--on {one}' for one in SYSTEMS)}"]


def _source(ctx: click.Context, mistakes: list[str]) -> "Source | None":
    from trireme.launch.kubernetes.source import read_source

    words = words_of(ctx)
    if words.target is None:
        mistakes.append(nothing_to_run(words.is_module))
        return None
    return _attempt(
        mistakes,
        read_source,
        words.target,
        words.arguments,
        is_module=words.is_module,
        folder=ctx.params["folder"],
    )


def nothing_to_run(is_module: bool) -> str:
    """That the script or the module is missing."""
    after = "a module's name after -m" if is_module else "a script, or -m and a module's name"
    return f"there is nothing to run: add {after}, and then its arguments"


def _kubernetes_job(
    values: dict[str, Any], source: "Source | None", mistakes: list[str], run_id: str
) -> "KubernetesJob | None":
    """The job; where its source is missing it is checked without one, so that all mistakes are found."""
    from trireme.launch.kubernetes.source import Source
    from trireme.launch.kubernetes.spec import KubernetesJob

    numbers = _numbers(values, mistakes)
    return _attempt(
        mistakes,
        KubernetesJob,
        name=values["name"],
        image=values["image"],
        source=source or Source(""),
        workers=numbers["workers"],
        servers=numbers["servers"],
        gpus=numbers["gpus"],
        cpu=values["cpu"],
        memory=values["memory"],
        backup_claim=values["backup_claim"],
        backup=values["backup"],
        backup_every=numbers["backup_every"],
        max_restarts=numbers["max_restarts"],
        namespace=values["namespace"],
        node_selector=tuple(values["node_selector"]),
        tolerations=tuple(values["toleration"]),
        priority_class=values["priority_class"],
        queue=values["queue"],
        grace_s=numbers["grace"],
        jobset=bool(values["jobset"]),
        backend=values["backend"] or keras_backend(os.environ),
        run_id=run_id,
    )


def _numbers(values: dict[str, Any], mistakes: list[str]) -> dict[str, int]:
    return {name: _number(name, values[name], mistakes) for name in NUMBERS}


def _number(name: str, text: str | None, mistakes: list[str]) -> int:
    """The number after an option; its default where there is none, or where it is no number."""
    if text is None:
        return NUMBERS[name]
    if text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    option = f"--{name.replace('_', '-')}"
    mistakes.append(f"{option} {text!r}: expected a whole number, like {option} {NUMBERS[name] or 1}")
    return NUMBERS[name]


def _attempt(
    mistakes: list[str],
    function: Callable[_Parameters, _Result],
    *arguments: _Parameters.args,
    **keywords: _Parameters.kwargs,
) -> _Result | None:
    """What the function returns. Where it finds mistakes they are added to `mistakes`, and there is no result."""
    try:
        return function(*arguments, **keywords)
    except InvalidJob as error:
        mistakes.extend(error.mistakes)
        return None


def _warn_of_modules_left_behind(source: "Source", script: str) -> None:
    from trireme.launch.kubernetes.source import modules_left_behind

    names = modules_left_behind(source, script)
    if names:
        print(
            f"trireme: {script} imports {', '.join(names)}, which lies beside it and is not shipped. Where the image "
            f"does not have it, add --folder {Path(script).parent}",
            file=sys.stderr,
        )
