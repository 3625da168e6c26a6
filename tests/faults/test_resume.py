"""A training that was interrupted ends with the numbers of one that was not, whatever its input."""

import numpy as np
import pytest

from tests.faults.trainings import (
    ends_and_refusals,
    train_without_chance,
    undisturbed_and_resumed,
)
from trireme.testing import run_workers

# Before which step it is interrupted, and how often it is backed up; epochs have 7 or 5 steps.
INTERRUPTIONS = [(5, 2), (12, 3), (9, "epoch")]
KINDS = {
    "tensorflow": [
        "arrays",
        "arrays, restarted with another seed",
        "tf.data",
        "tf.data, cached after its shuffle",
        "tf.data, shuffled twice in an epoch",
        "tf.data, of unknown length",
        "tf.data, endless",
    ],
    "jax": [
        "arrays",
        "arrays, restarted with another seed",
        "arrays, shuffled by batches",
        "arrays, epochs that end in between",
        "tf.data",
        "tf.data, of unknown length",
        "tf.data, endless",
    ],
}
TIMEOUT_S = 800


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


@pytest.mark.timeout(TIMEOUT_S + 50)
@pytest.mark.parametrize("backend", KINDS)
def test_it_ends_as_if_nothing_had_happened(backend):
    [results] = run_workers(
        undisturbed_and_resumed, 1, KINDS[backend], INTERRUPTIONS, backend=backend, timeout_s=TIMEOUT_S
    )
    wrong = [
        f"{kind}, interrupted at {interruption}: {difference}"
        for kind, (undisturbed, resumed) in results.items()
        for interruption, one in zip(INTERRUPTIONS, resumed, strict=True)
        for difference in differences(undisturbed, one, 1e-6)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(TIMEOUT_S + 50)
@pytest.mark.parametrize("backend", KINDS)
def test_before_and_after_a_training(backend):
    [found] = run_workers(ends_and_refusals, 1, backend=backend, timeout_s=TIMEOUT_S)
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
    assert "in an order that nothing can repeat" in found["unseeded"][0]
    assert "no position that can be saved (GeneratorData)" in found["generator"][0]
    assert found["is a callback"]


@pytest.mark.timeout(TIMEOUT_S + 50)
@pytest.mark.parametrize("backend", KINDS)
def test_fewer_and_more_workers_go_on(backend, tmp_path):
    folder = str(tmp_path / "backup")

    def train(num_workers, *arguments):
        return run_workers(
            train_without_chance, num_workers, *arguments, backend=backend, timeout_s=TIMEOUT_S // 4
        )

    [undisturbed] = train(1, None, 0)
    assert train(2, folder, 6) == [None, None]
    assert train(1, folder, 6) == [None]
    for resumed in train(2, folder, 0):
        assert not differences(undisturbed, resumed, 1e-5)
