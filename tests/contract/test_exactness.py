"""The exactness contract: several replicas give the numbers that one device gives."""

import numpy as np
import pytest

from tests.contract.cases import CASES
from tests.contract.run_cases import run_cases
from tests.once import once
from trireme.testing import run_workers

# Entries of weights are of the order of 0.1 to 1. One that happens to lie near zero carries the rounding of those it
# was computed from, so it needs an absolute bound of their size.
RTOL, ATOL = 1e-5, 2e-6

# (backend, worker processes, replicas of each, environment)
WAYS = {
    "tensorflow-2": ("tensorflow", 2, 1, {}),
    "tensorflow-3": ("tensorflow", 3, 1, {}),
    "tensorflow-2-runtime": ("tensorflow", 2, 1, {"TRIREME_COLLECTIVES": "runtime"}),
    "jax-2": ("jax", 1, 2, {}),
    "jax-3": ("jax", 1, 3, {}),
    "jax-2-processes": ("jax", 2, 1, {}),
    "torch-2": ("torch", 2, 1, {}),
    "torch-3": ("torch", 3, 1, {}),
    "torch-2-runtime": ("torch", 2, 1, {"TRIREME_COLLECTIVES": "runtime"}),
}

# Equal to one device only where one program sees the whole batch. Elsewhere each replica normalises by its own rows and
# draws by itself; the workers must agree all the same.
ONE_PROGRAM_ONLY = {"batch_norm_and_dropout"}

# With the frameworks' own transports only what moves the bytes differs: the cases that exchange each kind of thing.
RUNTIME_CASES = (
    "last_batch_of_1_by_hand",
    "weights_under_mean_with_sample_weight",
    "adam",
    "masked_sequences",
    "several_inputs_outputs_and_losses",
    "evaluate_counts_each_row_once",
    "predict_in_order",
    "batches_one_by_one",
    "batch_norm_and_dropout",
    "second_fit_and_recompile",
    "early_stopping_and_plateau",
    "stopped_in_the_middle_of_an_epoch",
)

BY_HAND = {
    "accumulated_by_hand": (3.1, 325.5),
    "last_batch_of_3_by_hand": (2.0, 47.368421),
    "last_batch_of_1_by_hand": (6.0, 52.941176),
    "weights_under_sum_over_batch_size_by_hand": (1.0, 50.0),
    "weights_under_mean_with_sample_weight_by_hand": (2.0, 100.0),
    "weights_under_sum_by_hand": (8.0, 400.0),
    "uneven_mask_by_hand": (0.4, 20.0),
    "clip_after_the_mean_by_hand": (1.0, 2450.5),
    "l2_by_hand": (0.9, 0.5),
}


def cases_of(way):
    return RUNTIME_CASES if way.endswith("runtime") else tuple(CASES)


@once
def results_of(way):
    """All cases on one way to share the work: one start of the processes for all of them."""
    backend, num_workers, replicas_per_worker, env = WAYS[way]
    return run_workers(
        run_cases,
        num_workers,
        cases_of(way),
        backend=backend,
        replicas_per_worker=replicas_per_worker,
        env=env,
        timeout_s=280,
    )


@once
def plain_results(backend):
    """All cases on one plain device."""
    [results] = run_workers(run_cases, 1, backend=backend, timeout_s=280)
    assert results["num_replicas"] == 1
    return results


@pytest.mark.parametrize(("way", "name"), [(way, name) for way in WAYS for name in cases_of(way)])
def test_replicas_give_the_numbers_of_one_device(way, name):
    backend, num_workers, replicas_per_worker, _ = WAYS[way]
    workers = results_of(way)
    assert len(workers) == num_workers
    assert {results["num_replicas"] for results in workers} == {num_workers * replicas_per_worker}
    expected = plain_results(backend)[name]
    if name in ONE_PROGRAM_ONLY and backend != "jax":
        expected = workers[0][name]
    assert not isinstance(expected, str), f"the reference failed:\n{expected}"
    for rank, results in enumerate(workers):
        got = results[name]
        assert not isinstance(got, str), f"worker {rank} failed:\n{got}"
        assert got.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(got[key], value, RTOL, ATOL, err_msg=f"{key} on worker {rank}")


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
@pytest.mark.parametrize("name", BY_HAND)
def test_one_device_gives_the_numbers_worked_out_by_hand(backend, name):
    result = plain_results(backend)[name]
    np.testing.assert_allclose((result["kernel"], result["loss"]), BY_HAND[name], 1e-5)
