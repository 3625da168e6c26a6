"""`trireme check`: starts replicas and compares what they compute with one device."""

import os
import sys
import tempfile
from dataclasses import replace
from typing import Any

import click

from trireme.cli.run import settings_of, target_of
from trireme.cli.script_command import ScriptCommand, Words, unknown_options, words_of
from trireme.errors import UsageError

# A worker that finds this variable verifies in the place of the script's first `fit`, and writes what it found there.
VERIFY = "TRIREME_VERIFY"
SELF_CHECK = "trireme.strategies.self_check"
EXIT_DIFFERENT = 1
# Options of `trireme run` that a check has no use for.
_NOT_OFFERED = ("workers", "log_dir", "grace", "backup", "backup_every", "max_restarts")


@click.command(cls=ScriptCommand)
@click.option("--verify", is_flag=True, help="Check the model that SCRIPT gives to its first fit.")
@click.option(
    "--replicas", metavar="N", help="Copies of the model. Default: one for each device, at least 2."
)
@click.option("--backend", metavar="NAME", help="Keras backend. Default: what Keras itself would choose.")
@click.option("--strategy", metavar="NAME", help="Strategy for a script that has none: mirrored, ...")
@click.option("--timeout", metavar="S", help="Seconds a worker may keep the others waiting. Default: 600.")
@click.pass_context
def check(ctx: click.Context, verify: bool, **values: str | None) -> int:
    """Tell whether replicas here compute what one device computes, by trying it out.

    Starts the replicas, makes a few steps on one device and on all of them, and prints the largest differences in
    loss, gradients, weights and metrics. Alone it tries a small model of its own; with --verify the model, the data
    and the batch size of the first `fit` in SCRIPT, which ends there. The exit code is 0 when the numbers are those
    of one device, 1 when they are not.

    \b
    trireme check
    trireme check --backend jax --replicas 4
    trireme check --verify train.py --epochs 3
    trireme check --verify --strategy mirrored plain_keras_script.py
    """
    problems = unknown_options(ctx)
    words = Words(()) if problems else words_of(ctx)
    settings = settings_of({**dict.fromkeys(_NOT_OFFERED), **values}, os.environ, problems)
    if verify and not problems:
        target, kind = target_of(words, problems, "trireme check --verify")
    else:
        target, kind = SELF_CHECK, "module"
        if words.target:
            problems.append(
                f"to check the model of {words.target}, type: trireme check --verify {words.target}"
            )
    return _run(target, words.arguments, kind, settings, problems)


def _run(
    target: str, arguments: tuple[str, ...], kind: str, settings: dict[str, Any], problems: list[str]
) -> int:
    from trireme.launch.local import run as start
    from trireme.launch.planning import plan

    job = plan(target, arguments, kind=kind, found=problems, **settings)
    if job.cluster is None and job.num_workers * job.replicas_per_worker == 1:
        if settings["replicas"] is not None:
            raise UsageError(
                "--replicas 1 is one device itself: there is nothing to compare. Type --replicas 2."
            )
        job = plan(target, arguments, kind=kind, **{**settings, "replicas": 2})
    with tempfile.TemporaryDirectory(prefix="trireme-check-") as folder:
        path = os.path.join(folder, "report")
        code = start(replace(job, environ={**job.environ, VERIFY: path}))
        if code:
            return code
        if not os.path.exists(path):
            raise UsageError(
                f"{target} ended without a call of `fit` on a model of a strategy. Does it make a strategy, and the "
                "model in its scope? For a script without one, type: trireme check --verify --strategy mirrored "
                f"{target}"
            )
        with open(path, encoding="utf-8") as file:
            verdict, _, report = file.read().partition("\n")
    sys.stdout.write(report)
    return EXIT_DIFFERENT if verdict == "different" else 0
