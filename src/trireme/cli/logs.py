"""`trireme logs`: what a run on Kubernetes has said."""

import sys

import click

from trireme.cli.run_command import run_arguments, run_objects
from trireme.errors import UsageError


@click.command
@run_arguments
@click.option(
    "--rank",
    metavar="RANK",
    default="worker-0",
    help="Whose log, like worker-2 or server-0. Default: worker-0.",
)
@click.option(
    "--follow", "is_followed", is_flag=True, help="Watch the run again, as `trireme run` does, to its end."
)
@click.option(
    "--log-dir", metavar="D", help="With --follow: folder for every rank's log. Default: a temporary one."
)
def logs(name: str, namespace: str, rank: str, is_followed: bool, log_dir: str | None) -> int:
    """Print what a run on Kubernetes has said, or watch it again.

    Pods that were replaced come first. The logs of pods that the cluster has deleted are gone: `trireme run`
    and --follow keep them in --log-dir.
    """
    from trireme.launch.kubernetes.follow import follow
    from trireme.launch.kubernetes.pod_logs import read_log

    if log_dir and not is_followed:
        raise UsageError("--log-dir says something only with --follow")
    with run_objects(name, namespace) as objects:
        state = objects.observe_existing()
        if is_followed:
            return follow(objects, log_dir)
        pods = [pod for pod in (*state.earlier, *state.pods) if f"{pod.role}-{pod.index}" == rank]
        if not pods:
            known = ", ".join(f"{pod.role}-{pod.index}" for pod in state.pods[:8])
            raise UsageError(f"--rank {rank}: the run {name} has {known}")
        for pod in pods:
            for piece in read_log(objects, pod):
                sys.stdout.buffer.write(piece)
    return 0
