"""Keras models trained by parameter servers: in lock step with one device's numbers, else with every row once."""

import inspect

import numpy as np
import pytest

from tests.once import once
from tests.parameter_server.training_cases import CASES, OPTIMIZERS, REFUSED, run_cases
from trireme.testing import run_workers

RTOL, ATOL = 1e-5, 2e-6
BACKENDS = ("tensorflow", "jax", "torch")
# The optimizers run on the servers by the same code on every backend; what differs is how a step exchanges.
ON_ALL_BACKENDS = (
    "validated_evaluated_and_predicted",
    "one_call_after_the_other",
    "two_outputs_and_a_loss_that_is_tracked",
    "callbacks_that_change_the_model",
    "adam_on_two_servers",
    "learning_rate_set_by_a_callback",
    "embedding_by_rows",
    "own_pace",
    "batches_of_a_py_dataset",
    "bounded_staleness_and_early_end",
    "stopped_in_an_epoch_by_the_chief",
)
# It has most to compile: PyTorch, which does not, takes a tenth of the time of the others.
ON_TORCH = ("steps_of_the_servers",)
LOCK_STEP = [name for name, function in CASES.items() if not inspect.isfunction(function)]
LOCK_STEP += [
    "learning_rate_set_by_a_callback",
    "validated_evaluated_and_predicted",
    "one_call_after_the_other",
    "two_outputs_and_a_loss_that_is_tracked",
    "callbacks_that_change_the_model",
]

backends = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(scope="module")
def results_of(tmp_path_factory):
    @once
    def results_of(backend):
        folder = str(tmp_path_factory.mktemp(backend))
        names = {
            "tensorflow": [name for name in CASES if name not in ON_TORCH],
            "jax": ON_ALL_BACKENDS,
            "torch": ON_ALL_BACKENDS + ON_TORCH,
        }[backend]
        return run_workers(run_cases, 2, folder, names, backend=backend, timeout_s=280)

    return results_of


def result(results_of, backend, name):
    results = [worker[name] for worker in results_of(backend)]
    assert len(results) == 2
    for rank, found in enumerate(results):
        assert not isinstance(found, str), f"worker {rank} failed:\n{found}"
    return results


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        (backend, name)
        for backend in BACKENDS
        for name in LOCK_STEP
        if backend == "tensorflow" or name in ON_ALL_BACKENDS
    ],
)
def test_lock_step_gives_the_numbers_of_one_device(results_of, backend, name):
    for rank, found in enumerate(result(results_of, backend, name)):
        got, expected = found["servers"], found["plain"]
        assert got.keys() == expected.keys()
        held = expected.pop("number of weights held", None), got.pop("number of weights held", None)
        if "by_rows" in name:
            # The table of 50 rows of 4 is not among them; its anchor, one number, is.
            assert held[1] == held[0] - 200 + 1
        for key, value in expected.items():
            np.testing.assert_allclose(got[key], value, RTOL, ATOL, err_msg=f"{key} on worker {rank}")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_servers_make_the_steps_of_keras(results_of, name):
    for found in result(results_of, "torch", "steps_of_the_servers"):
        assert found[name] < 3e-6


@backends
def test_at_their_own_pace_every_row_counts_once(results_of, backend):
    first, second = result(results_of, backend, "own_pace")
    for got, other in zip(first["weights"], second["weights"], strict=True):
        np.testing.assert_array_equal(got, other)
    assert first["loss"] == second["loss"]
    assert first["rows"] == second["rows"] == [203]
    assert first["loss"][-1] < 0.7 * first["loss"][0]
    # 26 batches of an epoch, but ranges of several batches end with one that is not full.
    assert first["updates"] == second["updates"] == 8 * 26
    assert all(0 < staleness < 26 for staleness in first["staleness"])


@backends
def test_every_batch_of_a_py_dataset_counts_once(results_of, backend):
    for found in result(results_of, backend, "batches_of_a_py_dataset"):
        assert found["servers"].keys() == found["plain"].keys()
        for key, value in found["plain"].items():
            np.testing.assert_allclose(found["servers"][key], value, RTOL, ATOL, err_msg=key)


@backends
def test_the_chief_ends_the_training_of_all(results_of, backend):
    for found in result(results_of, backend, "bounded_staleness_and_early_end"):
        assert found["epochs"] == 2
        assert found["epochs of the second fit"] == 2
    assert {found["epochs"] for found in result(results_of, backend, "stopped_in_an_epoch_by_the_chief")} == {
        1
    }


def test_a_table_that_no_worker_could_hold(results_of):
    first, second = result(results_of, "tensorflow", "table_of_ten_million_rows")
    assert first["loss"] == second["loss"]
    assert first["loss"][-1] < 0.9 * first["loss"][0]
    # The table has 2.56e9 bytes.
    assert second["grown"] < 3e8


@pytest.mark.parametrize("expected", REFUSED)
def test_what_cannot_be_right_is_refused(results_of, expected):
    for found in result(results_of, "tensorflow", "refusals"):
        assert expected in found[expected]
        assert found[expected].startswith(("UsageError", "UnsupportedInput"))
