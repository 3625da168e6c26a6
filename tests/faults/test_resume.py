"""A training that was interrupted ends with the numbers of one that was not, whatever its input."""

import atexit
import shutil
import tempfile

import numpy as np
import pytest

from tests.faults import trainings
from tests.once import once
from trireme.testing import run_workers

BACKENDS = ["tensorflow", "jax", "torch"]
SEED = 11
# What happens around a training is the same code for all; here it takes least.
REFUSALS_ON = "torch"
TIMEOUT_S = 250

# By kind of input: before which steps it is interrupted, and how often it is backed up. Epochs have 7 or 5 steps.
OFTEN, ONCE = [(12, 3), (9, "epoch")], [(12, 3)]
KINDS = {
    "tensorflow": {
        "arrays": ONCE,
        "tf.data, cached after its shuffle": ONCE,
        "tf.data, shuffled twice in an epoch": ONCE,
        "tf.data, endless": ONCE,
    },
    "jax": {
        "arrays": ONCE,
        "arrays, epochs that end in between": ONCE,
        "tf.data, of unknown length": ONCE,
        "grain": ONCE,
    },
    "torch": {
        "arrays": OFTEN,
        "arrays, restarted with another seed": ONCE,
        "arrays, shuffled by batches": ONCE,
        "DataLoader": ONCE,
        "DataLoader, of unknown length": ONCE,
        "PyDataset": ONCE,
    },
}
KINDS_OF_TWO = {"arrays, accumulated": ONCE, "DataLoader": ONCE, "PyDataset": ONCE}


@once
def folder(backend):
    """Where the backups are that one number of workers leaves and another goes on from."""
    path = tempfile.mkdtemp(prefix="trireme-test-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@once
def of_one_worker(backend):
    return run(trainings.of_one_worker, 1, backend, KINDS[backend], folder(backend))


@once
def of_two_workers(backend):
    of_one_worker(backend)
    return run(trainings.of_two_workers, 2, backend, KINDS_OF_TWO, folder(backend))


@once
def of_one_worker_again(backend):
    of_two_workers(backend)
    return run(trainings.of_one_worker_again, 1, backend, folder(backend), backend == REFUSALS_ON)


def run(function, num_workers, backend, *arguments):
    return run_workers(
        function,
        num_workers,
        *arguments,
        backend=backend,
        timeout_s=TIMEOUT_S,
        env={"TRIREME_SEED": str(SEED)},
    )


def differences(first, second, tolerance):
    """What differs between two results, in words."""
    found = []
    if first["epochs"] != second["epochs"]:
        found.append(f"epochs {first['epochs']} and {second['epochs']}")
    if first["history"].keys() != second["history"].keys():
        return [*found, f"{first['history'].keys()} and {second['history'].keys()}"]
    pairs = [(name, first["history"][name], second["history"][name]) for name in first["history"]]
    pairs += [
        (f"weight {index}", *pair)
        for index, pair in enumerate(zip(first["weights"], second["weights"], strict=True))
    ]
    for name, one, other in pairs:
        if np.shape(one) != np.shape(other) or not np.allclose(one, other, rtol=0, atol=tolerance):
            found.append(f"{name}: {one} and {other}")
    return found


def wrong_in(resumed, interruptions_of):
    """What differs between undisturbed trainings and those that went on, in lines of text."""
    return "\n".join(
        f"{kind}, interrupted at {interruption}: {difference}"
        for kind, interruptions in interruptions_of.items()
        for interruption, one in zip(interruptions, resumed[kind]["resumed"], strict=True)
        for difference in differences(resumed[kind]["undisturbed"], one, 1e-6)
    )


@pytest.mark.timeout(TIMEOUT_S + 50)
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_worker_ends_as_if_nothing_had_happened(backend):
    [results] = of_one_worker(backend)
    wrong = wrong_in(results["resumed"], KINDS[backend])
    assert not wrong, wrong


@pytest.mark.timeout(2 * TIMEOUT_S + 50)
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_workers_end_as_if_nothing_had_happened(backend):
    for results in of_two_workers(backend):
        wrong = wrong_in(results["resumed"], KINDS_OF_TWO)
        assert not wrong, wrong


@pytest.mark.timeout(3 * TIMEOUT_S + 50)
@pytest.mark.parametrize("backend", BACKENDS)
def test_more_workers_go_on(backend):
    undisturbed = of_one_worker(backend)[0]["undisturbed"]
    for results in of_two_workers(backend):
        assert not differences(undisturbed, results["more workers"], 1e-5)


@pytest.mark.timeout(3 * TIMEOUT_S + 50)
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_fewer_workers_go_on(backend):
    undisturbed = of_one_worker(backend)[0]["undisturbed"]
    assert not differences(undisturbed, of_one_worker_again(backend)[0]["fewer workers"], 1e-5)


@pytest.mark.timeout(3 * TIMEOUT_S + 50)
def test_before_and_after_a_training():
    [found] = of_one_worker_again(REFUSALS_ON)
    assert found["again"] == found["first"], "a finished training is not done again"
    assert found["more epochs"]["epochs"] == [0, 1, 2]
    assert found["more epochs"]["history"]["loss"][:2] == found["first"]["history"]["loss"]
    assert found["files"] == 2
    assert "is of another model or optimizer" in found["other model"]
    assert "dense" in found["other model"] and found["other model"].startswith("UsageError")
    assert found["second fit of a program"] == [0]
    assert found["folders"] == ["fit-1"]
    assert "middle of an epoch of 7 batches" in found["other batches"]
    assert found["save_freq"].startswith("UsageError: save_freq is 0")
    assert found["keep"].startswith("UsageError: keep=0")
    assert "no strategy has" in found["no strategy"] and "OneDeviceStrategy" in found["no strategy"]
    [warning], _ = found["generator"]
    assert "no position that can be saved (a generator)" in warning
    # Of the backups after 3 and 6 steps and at the end.
    messages, num_backups = found["full disk"]
    assert len(messages) == 2 and all("no room" in message for message in messages)
    assert num_backups == 1
    assert found["is a callback"]
    assert found["class is Keras' own"]


@pytest.mark.timeout(3 * TIMEOUT_S + 50)
def test_an_order_that_nothing_can_repeat_is_told_at_the_start():
    [found] = of_one_worker("tensorflow")
    assert "in an order that nothing can repeat" in found["unseeded"][0]
