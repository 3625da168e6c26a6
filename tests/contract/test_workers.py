"""What every backend promises about workers that train together."""

import signal
import tempfile

import pytest

from tests.contract.behaviours import BEHAVIOURS, run_behaviours
from tests.once import once
from trireme.testing import run_workers

# Ways to have several worker processes: (backend, environment).
WAYS = {
    "tensorflow": ("tensorflow", {}),
    "tensorflow-runtime": ("tensorflow", {"TRIREME_COLLECTIVES": "runtime"}),
    "jax": ("jax", {}),
    "torch": ("torch", {}),
    "torch-runtime": ("torch", {"TRIREME_COLLECTIVES": "runtime"}),
}


@once
def all_results(way):
    backend, env = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        return run_workers(run_behaviours, 2, folder, backend=backend, env=env, timeout_s=280)


@pytest.fixture(params=WAYS)
def results(request):
    """Returns a function from a behaviour's name to its results on the two workers."""

    def of(name):
        assert name in BEHAVIOURS
        workers = all_results(request.param)
        assert [worker["rank"] for worker in workers] == [0, 1]
        assert {worker["num_replicas"] for worker in workers} == {2}
        for worker in workers:
            if isinstance(worker[name], str):
                pytest.fail(f"worker {worker['rank']}:\n{worker[name]}")
        return [worker[name] for worker in workers]

    of.way = request.param
    return of


def test_collectives(results):
    expected = {
        "sum": [3, 10],
        "wide sum": 2.0**41 + 2.0,
        "max": [[1, 0]],
        "gather": [[[0.0]], [[1.0], [1.0]]],
        "broadcast": 0.1,
        "reduce": [0.5, 1.5],
        "gather axis 1": [[0, 1, 1], [0, 1, 1]],
    }
    assert results("collectives") == [expected, expected]


def test_workers_start_and_end_with_the_same_weights_whatever_they_drew(results):
    first, second = results("initial_weights")
    assert first["drawn"] != second["drawn"]
    assert first["trained"] == second["trained"]
    assert first["loss"] == second["loss"]


def test_one_worker_stops_all_at_the_same_step(results):
    first, second = results("stop_by_one_worker_in_an_epoch")
    assert first == second
    assert first["iterations"] == 4


def test_one_worker_stops_all_after_the_same_epoch(results):
    assert results("stop_by_one_worker_between_epochs") == [2, 2]


def test_logs_of_batches_are_the_same_on_all_workers(results):
    first, second = results("logs_of_batches")
    assert len(first) == 3 and set(first[0]) == {"loss", "mae"}
    assert first == second


def test_only_the_chief_writes_files(results):
    first, second = results("files_are_the_chiefs")
    assert (first["calls"], second["calls"]) == ([0, 1, 2], [])
    assert first["lines"] == 4 and first["files"] == ["best.keras"]
    assert first["epochs"] == second["epochs"] == [0, 1, 2]


def test_a_backup_that_the_chief_restores_is_restored_everywhere(results):
    first, second = results("resumed_by_keras_own_backup")
    assert first == second
    assert first[0] == [2, 3]


def test_sparse_gradients_are_never_made_dense(results):
    first, second = results("sparse_gradients_stay_sparse")
    assert first == second
    if results.way.startswith("tensorflow"):
        assert ("IndexedSlices", 2) in first["kinds"]
        # The table has two dimensions and no dense gradient; the kernel of the last layer has one.
        assert len([kind for kind in first["kinds"] if kind[1] == 2]) == 2


def test_inputs_that_cannot_be_shared_out_are_refused_by_name(results):
    for messages in results("refused_inputs"):
        assert messages["scalars"].startswith("UnsupportedInput: `x` yields a scalar")
        for name in ("unbatched", "unbatched validation"):
            assert messages[name].startswith("UnsupportedInput: `")
            assert "the shapes (4,), (1,), which have no common number of rows" in messages[name]
        assert "`validation_data`" in messages["unbatched validation"]
        # Keras' own building of the model may come first.
        assert ("the batch at index 0 of `x` have (4, 1) rows" in messages["unbatched generator"]) or (
            "ValueError" in messages["unbatched generator"] and "shape" in messages["unbatched generator"]
        )
        assert "ValueError" in messages["different lengths"]
        if results.way == "jax":
            assert "UnsupportedInput: `x` holds a sparse matrix (scipy.sparse" in messages["sparse"]
        else:
            assert messages["sparse"] == "was taken"
        assert "UnsupportedInput: `x` has no batch on worker 1 of 2" in messages["an empty part"]


DIFFERENCES = {
    "contents of arrays": "`x` is not the same on all workers (worker 0: Array of 1 batches with batch size 32",
    "lengths of arrays": "worker 1: Array of 1 batches with batch size 32 float32 31×4",
    "validation": "`validation_data` is not the same on all workers",
    "evaluated": "`x` is not the same on all workers",
    "predicted": "`x` is not the same on all workers",
    "contents of a generator": "at index 0 of `x` is not the same on all workers (worker 0: 8 rows, shapes 8×4 8×1",
    "a batch": "The batch that `train_on_batch` was given is not the same on all workers (worker 0: 32 rows",
    "a kind": "(worker 0: Generator of unknown length; worker 1: Array of 1 batches with batch size 32",
    "shapes in a generator": "at index 1 of `x` is not the same on all workers (worker 0: 8 rows, shapes 8×4 8×1",
    "length of a generator": "The batch at index 3 of `x` is not the same on all workers (worker 0: no batch any more",
    "length of a dataset": "The batch at index 5 of `x` is not the same on all workers (worker 0: no batch any more",
}


def test_inputs_that_differ_between_workers_end_on_all_of_them(results):
    first, second = results("inputs_that_differ_between_workers")
    assert first == second
    assert {name for name, message in first.items() if str(message).startswith("InputsDiffer")} == set(
        DIFFERENCES
    )
    for name, words in DIFFERENCES.items():
        assert words in first[name], name
    assert "strategy.distribute_datasets_from_function" in first["contents of arrays"]
    assert not first["trained on them"]


def test_dropout_differs_between_replicas_and_repeats_from_one_seed(results):
    first, second = results("dropout_masks")
    if results.way == "jax":
        # One program draws for all rows: `batch_norm_and_dropout` in test_exactness.py compares with one device.
        assert first is second is None
        return
    for masks, again in (first, second):
        assert len(masks) == 2 and masks == again
        assert masks[0] != masks[1]
    assert first[0][0] != second[0][0] and first[0][1] != second[0][1]


def test_half_precision_gradients_do_not_overflow_in_the_exchange(results):
    assert results("both_sums_of_a_gradient") == pytest.approx([4.0, 4.0], rel=1e-3)


def test_each_worker_takes_its_own_rows_only(results):
    first, second = results("a_line_with_unequal_parts")
    assert first["kernel"] == second["kernel"]
    if results.way == "jax":
        # 7 rows do not divide by 2 devices: both compute all of them.
        assert first["mine"] == second["mine"] == [0, 1, 2, 3, 4, 5, 6]
    else:
        assert (first["mine"], second["mine"]) == ([0, 1, 2], [3, 4, 5, 6])


def test_metrics_whose_state_is_no_sum_are_refused_by_name(results):
    if results.way == "jax":
        # One program sees all rows: any state is right.
        return
    for messages in results("metrics_that_cannot_be_put_together"):
        for name in ("a running maximum", "a running maximum from minus infinity"):
            assert messages[name].startswith("UsageError: The metric 'largest' (Largest) cannot be used"), (
                messages
            )
        assert "changes Python attributes" in messages["a list"]
    # What the chief has is everybody's, so it is another worker that finds its own to differ.
    assert "so it must be the same on every worker" in messages["a maximum of each worker's own"]


def test_forks_of_workers_end_by_sigterm(results):
    # As those end that read a `PyDataset` with `use_multiprocessing`; who waits for them would wait for ever.
    assert results("forks_end_by_sigterm") == [[-signal.SIGTERM] * 2] * 2


def test_loops_that_cannot_be_right_are_refused(results):
    for message, *_ in results("loops_that_cannot_be_right"):
        expected = (
            "UsageError: The optimizer" if results.way == "jax" else "UsageError: A loop of your own begins"
        )
        assert message.startswith(expected)


def test_accumulated_gradients_are_exchanged_once_per_update(results):
    for counts in results("exchanges_of_accumulated_gradients"):
        if results.way == "jax":
            # There it is the compiler's affair.
            assert counts is None
        elif results.way != "tensorflow-runtime":
            # Six micro-batches, an update after each three. What the graph exchanges by itself no one can count.
            assert counts == {"sums": 2, "updates": 2}


def test_verify_tells_models_that_differ_from_one_device_and_why(results):
    first, second = results("what_verify_finds")
    assert first == second
    assert all(report["left as it was"] for report in first.values())
    assert first["plain"]["is exact"]
    reasons = {
        "random": "Random layers (dropout",
        "batch norm": "Batch normalization (batch_normalization",
        "sum": "SumOfRows has a compute_loss of its own",
    }
    for name, reason in reasons.items():
        if results.way == "jax":
            assert first[name]["is exact"], first[name]["text"]
        else:
            assert not first[name]["is exact"] and reason in first[name]["text"], first[name]["text"]
