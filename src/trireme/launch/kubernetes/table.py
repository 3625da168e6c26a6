"""A run's pods as a table."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trireme.launch.kubernetes.observation import FAILED, RUNNING, SUCCEEDED, PodState, RunState
from trireme.launch.progress_line import Progress

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("rank", "node", "phase", "restarts", "generation", "step", "rows/s", "why")
Row = tuple[str, ...]
_MAX_WHY = 120


def rows(state: RunState, progress: Callable[[PodState], Progress | None]) -> list[Row]:
    """A line for each rank, in `COLUMNS`."""
    return [_row(state, pod, progress(pod)) for pod in state.pods]


def fitting(lines: Sequence[Row], height: int) -> tuple[list[Row], int]:
    """As many rows as there is room for, those that are not running first, and how many are left out."""
    if len(lines) <= height:
        return list(lines), 0
    shown = max(height - 1, 1)
    calm = (RUNNING, SUCCEEDED)
    chosen = sorted(range(len(lines)), key=lambda place: (lines[place][2] in calm, place))[:shown]
    return [lines[place] for place in sorted(chosen)], len(lines) - shown


def rich_table(lines: Sequence[Row], num_left_out: int = 0) -> "Table":
    """The rows for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for column in COLUMNS:
        is_number = column in ("restarts", "generation", "step", "rows/s")
        table.add_column(column, justify="right" if is_number else "left", no_wrap=column != "why")
    for line in lines:
        styles = {RUNNING: "green", SUCCEEDED: "green", FAILED: "red"}
        phase = Text(line[2], style=styles.get(line[2], "yellow"))
        table.add_row(*map(Text, line[:2]), phase, *map(Text, line[3:]))
    if num_left_out:
        table.add_row(Text(f"and {num_left_out} more", style="dim"))
    return table


def _row(state: RunState, pod: PodState, progress: Progress | None) -> Row:
    why = " ".join(pod.reason.split())
    if not why and pod.exit_code:
        why = f"exit code {pod.exit_code}"
    return (
        f"{pod.role} {pod.index}",
        pod.node or "-",
        pod.phase,
        str(state.restarts(pod)),
        "-" if progress is None else str(progress.generation),
        "-" if progress is None or progress.step is None else str(progress.step),
        "-" if progress is None or progress.rows_per_s is None else f"{progress.rows_per_s:,.0f}",
        why if len(why) <= _MAX_WHY else f"{why[: _MAX_WHY - 1]}…",
    )
