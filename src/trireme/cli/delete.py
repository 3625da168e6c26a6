"""`trireme delete`: ends a run on Kubernetes and deletes it."""

import click

from trireme.cli.run_command import run_arguments, run_objects


@click.command
@run_arguments
def delete(name: str, namespace: str) -> None:
    """End a run on Kubernetes, and delete it.

    Its pods are told to end, and save a backup first where they make any. Backups stay.
    """
    with run_objects(name, namespace) as objects:
        for line in objects.delete():
            click.echo(f"deleted {line}")
