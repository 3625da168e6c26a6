"""The exactness contract: several replicas give the numbers that one device gives."""

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.conftest import processes_of_this_session
from tests.contract.cases import CASES
from tests.contract.run_cases import SAVED, run_cases
from tests.once import once
from trireme.testing import WorkersFailed, run_workers

# Entries of weights are of the order of 0.1 to 1. One that happens to lie near zero carries the rounding of those it
# was computed from, so it needs an absolute bound of their size.
RTOL, ATOL = 1e-5, 2e-6

# Of one start with all its cases, on a machine that does other things as well.
LIMIT_S = 600
pytestmark = pytest.mark.timeout(LIMIT_S + 60)

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
ONE_PROGRAM_ONLY = {"batch_norm_and_dropout", "local_batch_norm"}

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
    "accumulated",
    "synchronised_batch_norm",
    "overflow_while_accumulating",
    "compiled_loop_of_the_users_own",
    "parts_of_unequal_length",
)

# Refused, by name: `refused_inputs` in behaviours.py.
NOT_TAKEN = {"jax-2-processes": ("sparse_matrices",)}

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


# What comes before or after the exchange is nothing to the number of replicas and of processes.
TWO_REPLICAS_ONLY = {name for name in CASES if name.startswith("optimizer_")} | {
    "accumulated_and_clipped",
    "accumulated_by_hand",
    "adam_over_an_unknown_length",
    "batch_norm_by_hand",
    "bfloat16_by_hand",
    "clipnorm",
    "compiled_outside_of_the_scope",
    "ema",
    "functional_losses",
    "global_clipnorm",
    "loaded_weights_and_lora",
    "loop_of_the_users_own",
    "made_outside_of_the_scope",
    "metric_of_a_plain_function",
    "momentum",
    "one_variable_eagerly",
    "overflow_on_one_replica",
    "run_eagerly",
    "schedule_and_weight_decay",
    "synchronised_batch_norm_with_masks",
    "task_of_backbone_and_preprocessor",
    "trained_before_it_was_adopted",
    "two_optimizers_against_each_other",
    "validation_split",
    "verified",
}

# Most of a start (imports, tracing, compiling) keeps one core busy.
STARTS_AT_ONCE = 2


@pytest.fixture(scope="module", autouse=True)
def starts(request):
    """Works out ahead of the tests what those that were chosen will ask for, in their order."""
    chosen = [item.callspec.params for item in request.session.items if item.module is request.module]
    ways = dict.fromkeys(params["way"] for params in chosen if params.get("way") in WAYS)
    with ThreadPoolExecutor(STARTS_AT_ONCE) as pool:
        for way in ways:
            pool.submit(plain_results, WAYS[way][0])
            pool.submit(results_of, way)
        yield
        pool.shutdown(wait=False, cancel_futures=True)
        for pid in processes_of_this_session():
            # After an interrupt nobody wants to wait for these.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def cases_of(way):
    if way.endswith("runtime"):
        return RUNTIME_CASES
    left_out = TWO_REPLICAS_ONLY if way.endswith(("-3", "-processes")) else set()
    return tuple(name for name in CASES if name not in left_out.union(NOT_TAKEN.get(way, ())))


@once
def results_of(way):
    """All cases on one way to share the work: one start of the processes for all of them."""
    backend, num_workers, replicas_per_worker, env = WAYS[way]
    return run_workers(
        run_cases,
        num_workers,
        cases_of(way),
        saved_model(),
        backend=backend,
        replicas_per_worker=replicas_per_worker,
        env=env,
        timeout_s=LIMIT_S,
    )


@once
def trained_and_saved():
    """What two replicas have trained, by rank, and the file of it, with which training goes on elsewhere."""
    return [results[SAVED] for results in run_workers(run_cases, 2, (), "make", backend="tensorflow")]


def saved_model():
    """The file of a trained model, as an array of bytes; None where that failed, which is one test's affair."""
    try:
        saved, _ = trained_and_saved()
    except WorkersFailed:
        return None
    return None if isinstance(saved, str) else saved["file"]


@once
def plain_results(backend):
    """All cases on one plain device."""
    [results] = run_workers(run_cases, 1, None, saved_model(), backend=backend, timeout_s=LIMIT_S)
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


@pytest.mark.parametrize("way", [*WAYS, "plain tensorflow", "plain jax", "plain torch"])
def test_training_goes_on_with_any_number_of_replicas_on_any_backend(way):
    expected, _ = trained_and_saved()
    assert not isinstance(expected, str), f"saving failed:\n{expected}"
    workers = [plain_results(way.removeprefix("plain "))] if way.startswith("plain") else results_of(way)
    for results in workers:
        got = results[SAVED]
        assert not isinstance(got, str), got
        assert got.keys() - {"file"} == expected.keys() - {"file"}
        for key in got.keys() - {"file"}:
            np.testing.assert_allclose(got[key], expected[key], RTOL, ATOL, err_msg=key)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
@pytest.mark.parametrize("name", BY_HAND)
def test_one_device_gives_the_numbers_worked_out_by_hand(backend, name):
    result = plain_results(backend)[name]
    np.testing.assert_allclose((result["kernel"], result["loss"]), BY_HAND[name], 1e-5)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_batch_statistics_of_one_device_are_those_worked_out_by_hand(backend):
    result = plain_results(backend)["batch_norm_by_hand"]
    np.testing.assert_allclose((result["mean"][0], result["variance"][0]), (5, 25), 1e-6)
