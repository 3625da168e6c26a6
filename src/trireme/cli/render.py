"""`trireme render`: prints what a cluster would be given, and gives it to nobody."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from trireme.cli.script_command import ScriptCommand, unknown_options, words_of
from trireme.cluster.machine import keras_backend
from trireme.errors import InvalidJob

if TYPE_CHECKING:
    from trireme.launch.kubernetes.source import Source
    from trireme.launch.kubernetes.spec import KubernetesJob

SYSTEMS = ("kubernetes",)
NUMBERS = {"workers": 1, "servers": 0, "gpus": 0, "grace": 120}

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@click.command(cls=ScriptCommand)
@click.option("--on", metavar="SYSTEM", default="", help=f"What to render for: {', '.join(SYSTEMS)}.")
@click.option("--name", metavar="NAME", default="", help="The run's name: pods are called after it.")
@click.option(
    "--image", metavar="IMAGE", default="", help="Image of all pods, with Trireme and the backend in it."
)
@click.option("--workers", metavar="N", help="Worker pods. Default: 1.")
@click.option("--servers", metavar="N", help="Parameter-server pods. Default: none.")
@click.option("--gpus", metavar="N", help="GPUs of each worker pod. Default: none.")
@click.option("--cpu", metavar="CORES", default="", help="Cores requested for each pod, like 4 or 500m.")
@click.option("--memory", metavar="AMOUNT", default="", help="Memory of each pod, like 16Gi.")
@click.option("--backup-claim", metavar="CLAIM", default="", help="PersistentVolumeClaim for backups.")
@click.option(
    "--backup", metavar="URL", default="", help="Object storage for backups, like gs://bucket/folder."
)
@click.option("--namespace", metavar="NAMESPACE", default="", help="Default: the one kubectl is set to.")
@click.option("--node-selector", metavar="LABEL=VALUE", multiple=True, help="Only nodes with it. Repeatable.")
@click.option(
    "--toleration",
    metavar="TAINT",
    multiple=True,
    help="KEY[=VALUE][:EFFECT] to be placed in spite of. Repeatable.",
)
@click.option("--priority-class", metavar="CLASS", default="", help="An existing PriorityClass.")
@click.option("--queue", metavar="QUEUE", default="", help="The Kueue queue that admits the run.")
@click.option("--grace", metavar="S", help="Seconds to save in when a pod has to go. Default: 120.")
@click.option("--jobset", is_flag=True, help="Render a JobSet in place of Jobs.")
@click.option(
    "--overlay", metavar="FILE", multiple=True, help="YAML merged into what is rendered. Repeatable."
)
@click.option("--backend", metavar="NAME", help="Keras backend. Default: what Keras itself would choose.")
@click.option(
    "--folder", metavar="FOLDER", help="Ship this folder, up to 1 MiB, in place of the script alone."
)
@click.pass_context
def render(ctx: click.Context, **_: object) -> None:
    """Print what would run a script on a cluster.

    The script is shipped in a ConfigMap, alone or with --folder. A module is expected in the image, or in
    --folder. What follows SCRIPT, or MODULE, are its own arguments. Equal commands print equal bytes.

    \b
    trireme render --on kubernetes --name train --image IMAGE --workers 4 --gpus 1 train.py --epochs 3
    trireme render --on kubernetes --name train --image IMAGE --servers 2 --workers 4 -m package.train
    """
    from trireme.launch.kubernetes import render as rendering
    from trireme.launch.kubernetes.overlay import apply_overlays
    from trireme.launch.kubernetes.yaml_text import read_overlay, to_yaml

    unknown = unknown_options(ctx)
    if unknown:
        # What follows an option that does not exist may be its value or the script: the rest cannot be judged.
        raise InvalidJob(unknown)
    mistakes = _system_mistakes(ctx.params["on"])
    source = _source(ctx, mistakes)
    overlays = [one for path in ctx.params["overlay"] for one in _attempt(mistakes, read_overlay, path) or []]
    job = _job(ctx.params, source, mistakes)
    if job is None or mistakes:
        raise InvalidJob(mistakes)
    objects = apply_overlays(rendering.render(job), overlays)
    text = to_yaml(objects, rendering.header(job))
    _warn_of_modules_left_behind(job.source, words_of(ctx).target or "")
    sys.stdout.buffer.write(text.encode())


def _system_mistakes(system: str) -> list[str]:
    if system in SYSTEMS:
        return []
    said = f"--on {system!r}: expected" if system else "nothing says what to render for: add"
    return [f"{said} --on {SYSTEMS[0]}"]


def _source(ctx: click.Context, mistakes: list[str]) -> "Source | None":
    from trireme.launch.kubernetes.source import read_source

    words = words_of(ctx)
    if words.target is None:
        after = "a module's name after -m" if words.is_module else "a script, or -m and a module's name"
        mistakes.append(f"there is nothing to run: add {after}, and then its arguments")
        return None
    return _attempt(
        mistakes,
        read_source,
        words.target,
        words.arguments,
        is_module=words.is_module,
        folder=ctx.params["folder"],
    )


def _job(values: dict[str, str], source: "Source | None", mistakes: list[str]) -> "KubernetesJob | None":
    """The job; where its source is missing it is checked without one, so that all mistakes are found."""
    from trireme.launch.kubernetes.source import Source
    from trireme.launch.kubernetes.spec import KubernetesJob

    numbers = {name: _number(name, values[name], mistakes) for name in NUMBERS}
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
        namespace=values["namespace"],
        node_selector=tuple(values["node_selector"]),
        tolerations=tuple(values["toleration"]),
        priority_class=values["priority_class"],
        queue=values["queue"],
        grace_s=numbers["grace"],
        jobset=bool(values["jobset"]),
        backend=values["backend"] or keras_backend(os.environ),
    )


def _number(name: str, text: str | None, mistakes: list[str]) -> int:
    """The number after an option; its default where there is none, or where it is no number."""
    if text is None:
        return NUMBERS[name]
    if text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    mistakes.append(f"--{name} {text!r}: expected a whole number, like --{name} {NUMBERS[name] or 1}")
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
