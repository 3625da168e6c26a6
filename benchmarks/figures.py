"""From the times of blocks to figures: ratios within one round, their median, smallest and largest. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# One block: what each process of the contestant measured in one round.
Block = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Comparison:
    """Whose rows per second are divided by whose, and what the quotient should be at least."""

    workload: str
    numerator: str
    denominator: str
    target: float | None = None


def comparisons(backend: str) -> list[Comparison]:
    """Returns every comparison of the benchmark, in the order of the report."""
    peer_on_mlp = 3.0 if backend == "tensorflow" else None
    return [
        Comparison("resnet", "one_replica", "plain", 0.98),
        Comparison("resnet", "two_replicas", "pair", 0.95),
        Comparison("resnet", "two_replicas", "peer", 1.0),
        Comparison("resnet", "two_replicas", "plain"),
        Comparison("mlp", "one_replica", "plain", 0.98),
        Comparison("mlp", "two_replicas", "pair", 0.95),
        Comparison("mlp", "two_replicas", "peer", peer_on_mlp),
        Comparison("mlp", "two_replicas", "plain"),
        Comparison("embedding", "one_replica", "plain", 0.98),
        Comparison("embedding", "two_replicas", "plain"),
    ]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns the median, the smallest and the largest of `values`, to four digits."""
    return {
        name: float(f"{function(values):.4g}")
        for name, function in (("median", statistics.median), ("min", min), ("max", max))
    }


def rows_per_s(block: Block, num_rows: int) -> float:
    """Returns the sum of the rates of a contestant's processes.

    Args:
        block: what each process measured.
        num_rows: rows of the block, all processes together; each had an equal share.
    """
    return sum(num_rows / len(block) / process["wall_s"] for process in block)


def contestant_summary(blocks: Sequence[Block], num_steps: int, global_batch: int) -> dict[str, Any]:
    """Returns one contestant's times on one workload.

    A step is `global_batch` rows, whoever trains them: for a pair of independent processes, half in each.
    """
    num_rows = num_steps * global_batch
    rates = [rows_per_s(block, num_rows) for block in blocks]
    cpu_s = [sum(process["cpu_s"] for process in block) for block in blocks]
    return {
        "rows_per_s": spread(rates),
        "step_ms": spread([1e3 * global_batch / rate for rate in rates]),
        "cpu_ms_per_step": spread([1e3 * seconds / num_steps for seconds in cpu_s]),
        "rounds": [float(f"{rate:.5g}") for rate in rates],
    }


def figure(comparison: Comparison, rounds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Returns one figure: the ratio in every round, and whether the median reaches the target.

    Args:
        comparison: who is compared.
        rounds: rows per second in each round, by contestant.
    """
    pairs = zip(rounds[comparison.numerator], rounds[comparison.denominator], strict=True)
    ratios = [numerator / denominator for numerator, denominator in pairs]
    summary = spread(ratios)
    return {
        "workload": comparison.workload,
        "numerator": comparison.numerator,
        "denominator": comparison.denominator,
        "target": comparison.target,
        "reached": None if comparison.target is None else summary["median"] >= comparison.target,
        "ratio": summary,
        "rounds": [float(f"{ratio:.4g}") for ratio in ratios],
    }
