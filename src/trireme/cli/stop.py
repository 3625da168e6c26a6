"""`trireme stop`: ends a run on Kubernetes and keeps it."""

import click

from trireme.cli.run_command import run_arguments, run_objects


@click.command
@run_arguments
def stop(name: str, namespace: str) -> None:
    """End a run on Kubernetes, and keep it.

    Its pods are told to end, and save a backup first where they make any. Its objects stay, suspended.
    """
    with run_objects(name, namespace) as objects:
        stopped = objects.stop()
    where = f" --namespace {namespace}" if namespace else ""
    click.echo(f"the run {name} is being stopped. To go on, type:")
    for one in stopped:
        click.echo(
            f"""  kubectl patch {one}{where} --type merge --patch '{{"spec": {{"suspend": false}}}}'"""
        )
    click.echo(f"To remove it, type:\n  trireme delete {name}{where}")
