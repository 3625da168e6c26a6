"""The benchmark's arithmetic, and that its page is what its results say."""

import pytest
from benchmarks.figures import Comparison, comparisons, contestant_summary, figure, rows_per_s, spread
from benchmarks.report import BEGIN, END, with_results


def test_a_pair_of_processes_counts_as_the_sum_of_their_rates():
    assert rows_per_s([{"wall_s": 1.0}, {"wall_s": 2.0}], num_rows=64) == 32 + 16


def test_a_spread_is_the_median_with_the_extremes():
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_a_ratio_is_taken_within_each_round():
    # Everything is twice as slow in the second round; the ratio does not see it.
    rounds = {"two_replicas": [190.0, 95.0, 200.0], "pair": [200.0, 100.0, 200.0]}
    result = figure(Comparison("mlp", "two_replicas", "pair", 0.95), rounds)
    assert result["rounds"] == [0.95, 0.95, 1.0]
    assert result["ratio"]["median"] == 0.95 and result["reached"] is True


@pytest.mark.parametrize(("target", "reached"), [(None, None), (0.5, True), (0.51, False)])
def test_a_figure_says_whether_its_median_is_enough(target, reached):
    result = figure(Comparison("mlp", "a", "b", target), {"a": [1.0], "b": [2.0]})
    assert result["reached"] is reached


def test_rounds_that_do_not_match_are_no_figure():
    with pytest.raises(ValueError, match="zip"):
        figure(Comparison("mlp", "a", "b"), {"a": [1.0, 1.0], "b": [1.0]})


def test_a_contestant_is_told_in_steps_of_the_global_batch():
    block = [{"wall_s": 0.5, "cpu_s": 0.4}, {"wall_s": 0.5, "cpu_s": 0.6}]
    summary = contestant_summary([block], num_steps=10, global_batch=64)
    assert summary["rows_per_s"]["median"] == 1280
    assert summary["step_ms"]["median"] == 50
    assert summary["cpu_ms_per_step"]["median"] == 100


def test_both_backends_are_asked_to_be_as_fast_as_keras_own_ways():
    assert [c.target for c in comparisons("tensorflow") if c.denominator == "peer"] == [1.0, 3.0]
    assert [c.target for c in comparisons("jax") if c.denominator == "peer"] == [1.0, None]


def a_result():
    blocks = [[{"wall_s": 1.0, "cpu_s": 1.0}]]
    summary = contestant_summary(blocks, num_steps=1, global_batch=64)
    return {
        "backend": "jax",
        "date": "2030-01-02T03:04:05+00:00",
        "took_s": 300.0,
        "machine": {"cores": 2, "processor": "a processor", "system": "a system"},
        "versions": {"keras": "3.15.1"},
        "workloads": {
            "mlp": {
                "cores_used_by_others": {"median": 0.1, "min": 0.0, "max": 0.2},
                "contestants": {"one_replica": summary, "plain": summary},
            }
        },
        "figures": [
            figure(Comparison("mlp", "one_replica", "plain", 2.0), {"one_replica": [64.0], "plain": [64.0]})
        ],
    }


def test_the_page_keeps_its_words_and_takes_the_results():
    page = with_results(f"before\n{BEGIN}\nold\n{END}\nafter\n", [a_result()])
    assert page.startswith("before\n") and page.endswith("after\n") and "old" not in page
    assert "| mlp | one replica | plain | **1.000** | 1.000 | 1.000 | 2 ✗ (-50%) |" in page
    assert "| mlp | plain | 1000 | 1000 | 1000 | 1000 |" in page
    assert with_results(page, [a_result()]) == page
