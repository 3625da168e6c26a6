"""Puts the results of the benchmarks into the documents, between two marks in each, and draws plots.

`scaling.py` goes to docs/benchmarks.md, `backups.py` and `soak.py` to docs/fault_tolerance.md, `parameter_server.py` to
docs/parameter_server.md.

python benchmarks/report.py
"""

import json
import pathlib
import statistics
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"
FAULT_PAGE = ROOT / "docs" / "fault_tolerance.md"
SERVER_PAGE = ROOT / "docs" / "parameter_server.md"
TRANSPORT_TARGET = 0.5
BEGIN, END = "<!-- results begin: written by `make benchmark-report` -->", "<!-- results end -->"

_COLOURS = {True: "tab:green", False: "tab:red", None: "tab:gray"}


def section(result: Mapping[str, Any]) -> str:
    """Returns one backend's part of the page."""
    machine, versions = result["machine"], result["versions"]
    lines = [
        f"### {result['backend']}",
        "",
        f"{result['date'][:10]}, {machine['cores']} cores of {machine['processor']}, {machine['system']}. "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + f". {result['took_s'] / 60:.0f} minutes.",
        "",
        f"![ratios, {result['backend']}](scaling-{result['backend']}.png)",
        "",
        "| model | rows per second of | divided by those of | median | min | max | at least |",
        "|---|---|---|---|---|---|---|",
        *(_figure_row(entry) for entry in result["figures"]),
        "",
        "| model | contestant | ms per step | min | max | ms of processor time per step |",
        "|---|---|---|---|---|---|",
    ]
    for name, workload in result["workloads"].items():
        for contestant, summary in workload["contestants"].items():
            step, cpu = summary["step_ms"], summary["cpu_ms_per_step"]
            lines.append(
                f"| {name} | {_words(contestant)} | {step['median']:g} | {step['min']:g} | {step['max']:g} "
                f"| {cpu['median']:g} |"
            )
    lines += ["", _disturbance(result), ""]
    return "\n".join(lines)


def _figure_row(entry: Mapping[str, Any]) -> str:
    ratio = entry["ratio"]
    target = "" if entry["target"] is None else f"{entry['target']:g}"
    if entry["reached"] is not None:
        target += " ✓" if entry["reached"] else f" ✗ ({ratio['median'] / entry['target'] - 1:+.0%})"
    return (
        f"| {entry['workload']} | {_words(entry['numerator'])} | {_words(entry['denominator'])} "
        f"| **{ratio['median']:.3f}** | {ratio['min']:.3f} | {ratio['max']:.3f} | {target} |"
    )


def _words(name: str) -> str:
    return name.replace("_", " ")


def _disturbance(result: Mapping[str, Any]) -> str:
    """Says how quiet the machine was: cores that were busy with something else than the contestants."""
    parts = [
        f"{name} {workload['cores_used_by_others']['median']:.2f} "
        f"(at most {workload['cores_used_by_others']['max']:.2f})"
        for name, workload in result["workloads"].items()
    ]
    return f"Cores used by others during the rounds, median: {', '.join(parts)}."


def soak_rows(reports: list[Mapping[str, Any]]) -> list[str]:
    """Returns the table of all soaks."""
    return [
        "| backend | kills, before a first step | runs | restarts | steps lost per kill: mean, most "
        "| failure to next first step: median, longest | time lost per kill | largest difference |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {report['backend']} | {report['kills']}, {report['kills_before_the_first_step']} "
            f"| {report['runs']} | {report['restarts']} "
            f"| {report['lost_steps']['mean']:g}, {report['lost_steps']['most']} "
            f"| {report['restart_to_first_step_s']['median']:g} s, {report['restart_to_first_step_s']['longest']:g} s "
            f"| {report['time_lost_per_kill_s']:g} s | {max(report['largest_difference']):.2g} |"
            for report in reports
        ),
        "",
        *(
            f"- {report['backend']}: {report['date'][:10]}, {report['replicas']} replicas on "
            f"{report['machine']['cores']} cores, runs of {report['steps']} steps, a backup every "
            f"{report['backup_every']}; undisturbed {report['undisturbed_s']:g} s; load average at the end "
            f"{report['machine']['load_average_after'][0]:.1f}."
            for report in reports
        ),
    ]


def backup_rows(results: list[Mapping[str, Any]]) -> list[str]:
    """Returns the table of what backups cost."""
    lines = [
        "| backend | steps per second with backups, divided by those without | min | max | at least | cores used by "
        "others |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        ratio, target = result["figure"]["ratio"], result["figure"]["target"]
        mark = "✓" if result["figure"]["reached"] else "✗"
        others = result["workload"]["cores_used_by_others"]["median"]
        lines.append(
            f"| {result['backend']} | **{ratio['median']:.3f}** | {ratio['min']:.3f} | {ratio['max']:.3f} "
            f"| {target:g} {mark} | {others:.2f} |"
        )
    return lines


def server_rows(result: Mapping[str, Any]) -> list[str]:
    """Returns the table of what `ParameterServerStrategy` is compared with."""
    rounds = {
        f"{model}: updates per second of two workers, divided by those of `tf.distribute`": [
            entry[model] for entry in result["steps"]
        ]
        for model in ("mlp", "embedding")
    }
    rounds["two workers, one four times slower, divided by the sum of both alone"] = result["slow"]
    lines = ["| what | median | min | max | at least |", "|---|---|---|---|---|"]
    for what, entries in rounds.items():
        ratios, target = [entry["ratio"] for entry in entries], entries[0]["target"]
        mark = "✓" if statistics.median(ratios) >= target else "✗"
        lines.append(
            f"| {what} | **{statistics.median(ratios):.2f}** | {min(ratios):.2f} | {max(ratios):.2f} "
            f"| {target:g} {mark} |"
        )
    speeds = [entry["steps_per_s"] for entry in result["slow"]]
    synchronous = [each["synchronous"] / (each["fast alone"] + each["slow alone"]) for each in speeds]
    lines.append(
        f"| the same, synchronously | {statistics.median(synchronous):.2f} | {min(synchronous):.2f} "
        f"| {max(synchronous):.2f} | |"
    )
    machine = result["machine"]
    return [
        *lines,
        "",
        f"{result['date']}, {machine['cores']} cores of {machine['processor']}, {machine['system']}, load average "
        f"before {result['load_average_before']:.1f}.",
        "",
        "![validation loss over time, synchronous and asynchronous](parameter_server.png)",
    ]


def transport_rows(result: Mapping[str, Any]) -> list[str]:
    """Returns the table of how fast gradients and weights move."""
    ways = {
        "workers of the same machine (Unix socket)": "ratio_same_machine",
        "workers elsewhere, without encryption": "ratio",
        "the same, with the arithmetic of SGD": "ratio_with_sgd",
        "workers elsewhere, encrypted": "ratio_encrypted",
    }
    lines = [
        "| bytes per second of a push and a pull, divided by those of a TCP copy | ratio | at least |",
        "|---|---|---|",
    ]
    for way, name in ways.items():
        mark = "✓" if result[name] >= TRANSPORT_TARGET else "✗"
        lines.append(f"| {way} | **{result[name]:.2f}** | {TRANSPORT_TARGET:g} {mark} |")
    size = result["bytes_each_way"] >> 20
    return [
        *lines,
        "",
        f"{size} MiB each way in {result['num_variables']} variables, all on the loopback device.",
    ]


def with_results(page: str, results: list[Mapping[str, Any]]) -> str:
    """Returns the page with everything between its marks replaced."""
    return between_marks(page, "\n".join(section(result) for result in results))


def between_marks(page: str, text: str) -> str:
    """Returns the page with `text` between its marks, in the place of what was there."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def plot(result: Mapping[str, Any], path: pathlib.Path) -> None:
    """Draws every figure as its median with the range of its rounds, and its target."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figures = list(reversed(result["figures"]))
    chart, axes = pyplot.subplots(figsize=(8, 0.42 * len(figures) + 1.2), layout="constrained")
    for height, entry in enumerate(figures):
        ratio, colour = entry["ratio"], _COLOURS[entry["reached"]]
        axes.plot([ratio["min"], ratio["max"]], [height, height], color=colour, linewidth=3, alpha=0.35)
        axes.plot(ratio["median"], height, "o", color=colour)
        if entry["target"] is not None:
            axes.plot(entry["target"], height, "|", color="black", markersize=16)
    axes.axvline(1, color="lightgray", zorder=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    labels = [
        f"{entry['workload']}: {_words(entry['numerator'])} / {_words(entry['denominator'])}"
        for entry in figures
    ]
    axes.set_yticks(range(len(figures)), labels)
    axes.set_xlabel("rows per second, ratio: median, smallest and largest round; | at least")
    axes.set_title(result["backend"])
    chart.savefig(path, dpi=110)
    pyplot.close(chart)


def _results(name: str) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{name}-*.json"), reverse=True)]


def main() -> None:
    """The command."""
    results, backups, soaks = (_results(name) for name in ("scaling", "backups", "soak"))
    PAGE.write_text(with_results(PAGE.read_text(), results))
    tables = "\n".join(
        [*(backup_rows(backups) if backups else []), "", *(soak_rows(soaks) if soaks else []), ""]
    )
    FAULT_PAGE.write_text(between_marks(FAULT_PAGE.read_text(), tables))
    servers = RESULTS / "parameter_server.json"
    if servers.exists():
        rows = "\n".join([*server_rows(json.loads(servers.read_text())), ""])
        transport = RESULTS / "parameter_server_transport.json"
        if transport.exists():
            rows += "\n".join(["", *transport_rows(json.loads(transport.read_text())), ""])
        SERVER_PAGE.write_text(between_marks(SERVER_PAGE.read_text(), rows))
    for result in results:
        plot(result, PAGE.with_name(f"scaling-{result['backend']}.png"))


if __name__ == "__main__":
    main()
