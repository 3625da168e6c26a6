"""`trireme status`: how a run on Kubernetes stands, once."""

import time

import click

from trireme.cli.run_command import run_arguments, run_objects


@click.command
@run_arguments
def status(name: str, namespace: str) -> int:
    """Show how a run on Kubernetes stands.

    A line for each rank, then what keeps the run from going on, or how it ended. Ends with the run's exit code
    once it has ended, else with 0.
    """
    from rich.console import Console

    from trireme.launch.kubernetes.progress import last_progress
    from trireme.launch.kubernetes.table import rich_table, rows
    from trireme.launch.kubernetes.verdict import hints, judge

    with run_objects(name, namespace) as objects:
        state = objects.observe_existing()
        lost = objects.unready_nodes() if state.has_leaving_pods else set()
        progress = last_progress(objects, state)
    verdict = judge(state)
    console = Console(soft_wrap=True, highlight=False)
    console.print(rich_table(rows(state, progress.get)))
    for line in [*hints(state, time.time(), lost), *(verdict.lines if verdict else ())]:
        console.print(line, markup=False)
    if verdict is None:
        return 0
    console.print(f"ended with exit code {verdict.exit_code}")
    return verdict.exit_code
