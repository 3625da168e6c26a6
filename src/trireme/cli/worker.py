"""`trireme worker`: runs a script's workers on this machine, together with those of other machines."""

import os
from collections.abc import Mapping

import click

from trireme.cli.run import run, settings_of, target_of, whole_number
from trireme.cli.script_command import ScriptCommand, Words, unknown_options, words_of
from trireme.launch.variables import BACKUP, BACKUP_EVERY, RESTARTED_BY

# The same as those of `trireme run`.
SHARED = (
    "replicas",
    "workers",
    "strategy",
    "backend",
    "log_dir",
    "timeout",
    "backup",
    "backup_every",
    "max_restarts",
    "grace",
)
# One template describes all pods, so what others type is in their environment.
FROM_ENVIRONMENT = {
    "backup": BACKUP,
    "backup_every": BACKUP_EVERY,
    "max_restarts": "TRIREME_MAX_RESTARTS",
    "grace": "TRIREME_GRACE_S",
}


@click.command(cls=ScriptCommand, params=[option for option in run.params if option.name in SHARED])
@click.option(
    "--rendezvous", metavar="H:P", help="Where all machines meet: host and a free port of machine 0."
)
@click.option("--machines", metavar="N", help="How many machines there are, if nothing else tells it.")
@click.option("--machine", metavar="I", help="Which of them this one is, from 0.")
@click.pass_context
def worker(ctx: click.Context, **values: str | None) -> int:
    """Train on this machine as one of several that train together.

    To be started on every machine, with the same script: by a pod, by `srun`, or by hand. The machines meet at
    machine 0. When workers fail or a machine is lost, the others wait for it to come back, and all start
    again, up to --max-restarts times. The exit code is 0 only when all workers of all machines ended well.

    \b
    export TRIREME_TOKEN=a-secret-that-all-machines-share
    trireme worker --rendezvous host0:29400 --machines 2 --machine 0 train.py   # on host0
    trireme worker --rendezvous host0:29400 --machines 2 --machine 1 train.py   # on the other one
    """
    from trireme.agent.agent import run as start
    from trireme.agent.settings import settings_of as agent_settings_of
    from trireme.launch.planning import plan, surrounding_cluster
    from trireme.launch.server_process import serve_parameters

    cluster = surrounding_cluster(os.environ)
    if cluster is not None and cluster.role == "server":
        # The script is for the workers.
        return serve_parameters()
    problems = unknown_options(ctx)
    words = Words(()) if problems else words_of(ctx)
    target, kind = ("", "module") if problems else target_of(words, problems, "trireme worker")
    settings = settings_of(with_environment(values, os.environ), os.environ, problems)
    machines, machine = (
        whole_number(f"--{name}", values[name], problems) for name in ("machines", "machine")
    )
    job = plan(target, words.arguments, kind=kind, found=problems, **settings)
    if job.cluster is not None and job.cluster.servers:
        from trireme.launch.local import run as run_alone

        # With parameter servers every worker goes its own pace: whoever is lost is replaced alone.
        return run_alone(job, is_last_word=RESTARTED_BY in os.environ)
    agent = agent_settings_of(
        job, os.environ, rendezvous=values["rendezvous"], machines=machines, machine=machine
    )
    return start(job, agent)


def with_environment(values: Mapping[str, str | None], environ: Mapping[str, str]) -> dict[str, str | None]:
    """The options, with what the environment says in place of those that nobody typed."""
    told = {
        option: environ[variable]
        for option, variable in FROM_ENVIRONMENT.items()
        if environ.get(variable, "epoch") != "epoch"
    }
    return told | {name: value for name, value in values.items() if value or name not in told}
