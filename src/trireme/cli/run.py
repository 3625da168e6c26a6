"""`trireme run`: trains a script on several replicas, of this machine or of a cluster."""

import os
import secrets
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.machinery import PathFinder
from typing import Any

import click

from trireme.cli.cluster_options import (
    SYSTEMS,
    cluster_options,
    foreign_options,
    kubernetes_run,
    slurm_run,
    system_mistakes,
)
from trireme.cli.script_command import ScriptCommand, Words, unknown_options, words_of
from trireme.cluster.machine import is_installed, keras_backend
from trireme.errors import InvalidJob

STRATEGIES = ("mirrored", "multi_worker_mirrored", "parameter_server", "one_device")
LOCAL = {
    "replicas": "on a cluster there is one for each GPU of --gpus, or one for each of --workers",
    "strategy": "a script that runs on a cluster names its own",
    "timeout": "set TRIREME_TIMEOUT_S there",
}
EXTRAS = ("tensorflow", "jax", "torch")


@click.command(cls=ScriptCommand)
@click.option("--replicas", metavar="N", help="Copies of the model. Default: one for each device.")
@click.option(
    "--workers",
    metavar="N",
    help="Processes, by default one for each replica, with jax one for all; on a cluster pods or tasks.",
)
@click.option("--on", metavar="SYSTEM", default="", help=f"Train on a cluster: {', '.join(SYSTEMS)}.")
@click.option(
    "--strategy",
    metavar="NAME",
    help=f"Strategy for a script that has none: {', '.join(STRATEGIES)}.",
)
@click.option("--backend", metavar="NAME", help="Keras backend. Default: what Keras itself would choose.")
@click.option("--log-dir", metavar="D", help="Folder for every worker's output. Default: a temporary one.")
@click.option(
    "--timeout",
    metavar="S",
    help="Seconds after which a worker that keeps the others waiting ends the run. Default: 600.",
)
@cluster_options
@click.option("--rm", "is_deleted_after", is_flag=True, help="Kubernetes: delete the run once it has ended.")
@click.pass_context
def run(ctx: click.Context, **values: Any) -> int:
    """Train a Keras script on several replicas.

    Starts the worker processes, watches them, and ends with the script's exit code. Worker 0 keeps the
    terminal. What follows SCRIPT, or MODULE, are its own arguments.

    With --on kubernetes it creates what `trireme render` prints, and does the same; Ctrl-C leaves the run in
    the cluster. With --on slurm it submits the job and returns.

    \b
    trireme run train.py --epochs 3
    trireme run --replicas 4 -m package.train
    trireme run --strategy mirrored --replicas 2 plain_keras_script.py
    trireme run --workers 4 --servers 2 asynchronous.py
    trireme run --on kubernetes --name train --image IMAGE --workers 4 --gpus 1 train.py
    """
    if values["on"]:
        return _run_on_cluster(ctx, values)

    from trireme.launch.local import run as start
    from trireme.launch.planning import plan, surrounding_cluster
    from trireme.launch.server_process import serve_parameters

    cluster = surrounding_cluster(os.environ)
    if cluster is not None and cluster.role == "server":
        # The script is for the workers.
        return serve_parameters()
    problems = [*unknown_options(ctx), *foreign_options(values, "")]
    # With an unknown option it is not known which word was meant as the script.
    is_unclear = bool(unknown_options(ctx))
    words = Words(()) if is_unclear else words_of(ctx)
    target, kind = ("", "module") if is_unclear else target_of(words, problems)
    settings = settings_of(values, os.environ, problems)
    settings["servers"] = whole_number("--servers", values["servers"], problems)
    return start(plan(target, words.arguments, kind=kind, found=problems, **settings))


def _run_on_cluster(ctx: click.Context, values: Mapping[str, Any]) -> int:
    """Creates the run in the cluster; its exit code."""
    unknown = unknown_options(ctx)
    if unknown:
        raise InvalidJob(unknown)
    mistakes = [
        *system_mistakes(values["on"]),
        *(
            f"--{name.replace('_', '-')} says something only without --on: {why}"
            for name, why in LOCAL.items()
            if values[name]
        ),
    ]
    if values["on"] == "slurm":
        from trireme.launch.slurm import submit

        if values["servers"]:
            mistakes.append("--servers says something only on this machine and with --on kubernetes")
        if values["is_deleted_after"]:
            mistakes.append("--rm says something only with --on kubernetes: Slurm keeps nothing of a job")
        return submit.run(slurm_run(ctx, mistakes, values["log_dir"] or ""))

    from trireme.launch.kubernetes import follow
    from trireme.launch.kubernetes.keys import fresh_secrets

    # A new one each time: it tells pods of an earlier run of this name apart, and nobody else can join.
    job, objects = kubernetes_run(ctx, mistakes, run_id=secrets.token_hex(16))
    return follow.run(
        job.name,
        [*fresh_secrets(job), *objects],
        namespace=job.namespace,
        log_dir=values["log_dir"],
        is_deleted_after=values["is_deleted_after"],
    )


def target_of(words: Words, problems: list[str], command: str = "trireme run") -> tuple[str, str]:
    """What to run, and whether it is a script or a module; what is wrong with it is added to `problems`."""
    if not words.target:
        missing = "the module after -m" if words.is_module else "the script"
        problems.append(f"{missing} is missing: type `{command} train.py` or `{command} -m package.train`")
        return "", "module"
    if words.is_module:
        top = words.target.partition(".")[0]
        # As with `python -m`, the working folder comes first. Only the top is looked up: finding what lies
        # in a package would import the package.
        if PathFinder.find_spec(top, [os.getcwd(), *sys.path]) is None:
            problems.append(f"there is no module {top!r} in {os.getcwd()} nor among the installed packages")
        return words.target, "module"
    if os.path.isdir(words.target) and not os.path.exists(os.path.join(words.target, "__main__.py")):
        problems.append(f"{words.target!r} is a folder without __main__.py: expected a Python script")
    return words.target, "script"


def settings_of(
    values: Mapping[str, str | None], environ: Mapping[str, str], problems: list[str]
) -> dict[str, Any]:
    """The options as `plan` takes them; what is wrong with them is added to `problems`."""
    backend = values["backend"] or keras_backend(environ)
    if backend in EXTRAS and not is_installed(backend):
        problems.append(
            f"the backend {backend} is not installed: type pip install 'keras-trireme[{backend}]', or choose "
            f"another with --backend"
        )
    if values["log_dir"] and os.path.exists(values["log_dir"]) and not os.path.isdir(values["log_dir"]):
        problems.append(f"--log-dir {values['log_dir']} is a file: expected a folder, which may be missing")
    return {
        "replicas": whole_number("--replicas", values["replicas"], problems),
        "workers": whole_number("--workers", values["workers"], problems),
        "strategy": _strategy(values["strategy"], problems),
        "backend": values["backend"],
        "log_dir": values["log_dir"],
        "timeout_s": _seconds("--timeout", values["timeout"], problems),
        "grace_s": _seconds("--grace", values["grace"], problems),
        "backup": values["backup"] or None,
        "backup_every": whole_number("--backup-every", values["backup_every"], problems),
        "max_restarts": whole_number("--max-restarts", values["max_restarts"], problems),
    }


def whole_number(option: str, text: str | None, problems: list[str]) -> int | None:
    if text is None or text.strip().lstrip("-").isdecimal():
        return None if text is None else int(text)
    problems.append(f"{option} {text!r} is no whole number: type, for example, {option} 2")
    return None


def _seconds(option: str, text: str | None, problems: list[str]) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        problems.append(f"{option} {text!r} is no number of seconds: type, for example, {option} 120")
        return None


def _strategy(name: str | None, problems: list[str]) -> str | None:
    if name is None or name in STRATEGIES:
        return name
    near = get_close_matches(name, STRATEGIES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(STRATEGIES)}"
    problems.append(f"there is no strategy {name!r}: {hint}")
    return None
