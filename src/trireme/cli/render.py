"""`trireme render`: prints what a cluster would be given, and gives it to nobody."""

import sys

import click

from trireme.cli.cluster_options import SYSTEMS, cluster_options, kubernetes_run, slurm_run, system_mistakes
from trireme.cli.script_command import ScriptCommand, unknown_options
from trireme.errors import InvalidJob


@click.command(cls=ScriptCommand)
@click.option("--on", metavar="SYSTEM", default="", help=f"What to render for: {', '.join(SYSTEMS)}.")
@click.option("--workers", metavar="N", help="Worker pods, or Slurm tasks. Default: 1.")
@click.option("--backend", metavar="NAME", help="Keras backend. Default: what Keras itself would choose.")
@cluster_options
@click.option(
    "--keys",
    is_flag=True,
    help="Kubernetes: print not the run but the Secrets with keys for its --servers: others each time.",
)
@click.pass_context
def render(ctx: click.Context, **_: object) -> None:
    """Print what would run a script on a cluster.

    For Kubernetes the script is shipped in a ConfigMap, alone or with --folder; a module is expected in the
    image, or in --folder. For Slurm it stays where it is, in a folder that all nodes see. What follows SCRIPT,
    or MODULE, are its own arguments. Equal commands print equal bytes, but for --keys.

    \b
    trireme render --on kubernetes --name train --image IMAGE --workers 4 --gpus 1 train.py --epochs 3
    trireme render --on kubernetes --name train --image IMAGE --servers 2 --workers 4 -m package.train
    trireme render --on slurm --name train --workers 4 --gpus 1 --time-limit 8:00:00 train.py
    """
    unknown = unknown_options(ctx)
    if unknown:
        # What follows an option that does not exist may be its value or the script: the rest cannot be judged.
        raise InvalidJob(unknown)
    if ctx.params["on"] == "slurm":
        from trireme.launch.slurm.render import render as batch_script

        mistakes = ["--keys says something only with --on kubernetes"] if ctx.params["keys"] else []
        text = batch_script(slurm_run(ctx, mistakes))
    else:
        text = _manifest(ctx)
    sys.stdout.buffer.write(text.encode())


def _manifest(ctx: click.Context) -> str:
    from trireme.launch.kubernetes.keys import fresh_secrets
    from trireme.launch.kubernetes.render import header
    from trireme.launch.kubernetes.yaml_text import to_yaml

    mistakes = system_mistakes(ctx.params["on"])
    if ctx.params["keys"] and ctx.params["servers"] in (None, "0"):
        mistakes.append("--keys says something only with --servers: workers alone need no keys")
    job, objects = kubernetes_run(ctx, mistakes)
    if ctx.params["keys"]:
        return to_yaml(fresh_secrets(job), f"Keys of the parameter servers of the run {job.name}: secret.")
    return to_yaml(objects, header(job))
