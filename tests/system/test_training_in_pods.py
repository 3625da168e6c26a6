"""The digits example in two pods, one of which is killed in the middle: it ends with the undisturbed weights."""

import io
import pathlib
import re
import subprocess
import zipfile

import h5py
import numpy as np
import pytest

from tests.system.machine import Machine, machine

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "digits.py"
# An epoch takes less than a second: enough of them that a kill in the second one comes in the middle.
EPOCHS = 6


def weights_in(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of a saved model, optimizer's included, without a framework."""
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(folder / "digits.keras") as archive:
        file = h5py.File(io.BytesIO(archive.read("model.weights.h5")))
    file.visititems(
        lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
    )
    assert arrays
    return arrays


def start(at: Machine, name: str, backend: str) -> subprocess.Popen:
    line = ["run", "--on=kubernetes", f"--name={name}", "--image=local/digits:1", "--workers=2"]
    line += [f"--backend={backend}", "--memory=3Gi", "--backup-claim=shared", "--backup-every=5"]
    line += [f"--log-dir={name}", str(EXAMPLE), f"--epochs={EPOCHS}", f"--save=/trireme/backup/{name}-model"]
    return at.start(*line)


def pods_of(at: Machine, index: int) -> list[str]:
    """The pods that a rank has had."""
    names = [pod["metadata"]["name"] for pod in at.plane.list("Pod", {"trireme.dev/run": "digits"})]
    return [name for name in names if name.startswith(f"digits-{index}-")]


@pytest.mark.timeout(500)  # two starts of a framework, one after the other, beside another run
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_pod_that_is_killed_in_the_middle_costs_nothing(tmp_path, backend):
    """Undisturbed means: in such pods. Other numbers of threads add up in another order, and six epochs magnify it."""
    with machine(tmp_path) as at, start(at, "undisturbed", backend) as undisturbed:
        said = []
        with start(at, "digits", backend) as process:
            for text in process.stdout:
                said.append(text)
                if text.startswith("Epoch 2/"):
                    break
            (victim,) = pods_of(at, 1)
            at.kubelet.kill(victim, 9)
            said += process.stdout
        everything = "".join(said)
        assert process.returncode == 0, everything
        # The pod of the chief stayed: only its workers were started again.
        assert (len(pods_of(at, 0)), len(pods_of(at, 1))) == (1, 2), everything
        steps = re.search(r"going on from backup-.*after (\d+) steps", everything)
        assert steps is not None and int(steps[1]) >= 5, everything
        said_there = undisturbed.communicate(timeout=240)[0]
        assert undisturbed.returncode == 0, said_there
        assert "going on from" not in said_there
        ours, theirs = (weights_in(at.claim / f"{name}-model") for name in ("digits", "undisturbed"))
        assert ours.keys() == theirs.keys()
        for name in theirs:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-6, err_msg=name)
