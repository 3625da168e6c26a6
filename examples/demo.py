"""`make demo`: examples/digits.py with two replicas and on one plain device, side by side.

Both runs get the same number of threads in all. The backend is Keras' default, or KERAS_BACKEND's.
"""

import argparse
import contextlib
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile

EXAMPLE = pathlib.Path(__file__).with_name("digits.py")
NUM_REPLICAS = 2
MINIMUM_TEST_ACCURACY = 0.97


class NoStrategy:
    """Stands where the example makes its strategy, so that the example trains in stock Keras."""

    scope = staticmethod(contextlib.nullcontext)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", type=pathlib.Path, metavar="FOLDER", help=argparse.SUPPRESS)
    folder = parser.parse_args().plain
    if folder:
        train_plainly(folder)
    else:
        compare()


def train_plainly(folder: pathlib.Path) -> None:
    import trireme

    trireme.MirroredStrategy = NoStrategy  # type: ignore[misc, assignment]
    sys.argv = [str(EXAMPLE), "--save", str(folder)]
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def compare() -> None:
    # What TensorFlow says about the machine at start-up would bury the results.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GLOG_minloglevel", "2")
    with tempfile.TemporaryDirectory(prefix="trireme-demo-") as temporary:
        replicas, plain = pathlib.Path(temporary, "replicas"), pathlib.Path(temporary, "plain")
        launcher = [sys.executable, "-m", "trireme", "run", "--replicas", str(NUM_REPLICAS)]
        run([*launcher, "--log-dir", temporary, str(EXAMPLE), "--save", str(replicas)])
        run([sys.executable, __file__, "--plain", str(plain)], **one_device_environ())
        rows = {f"{NUM_REPLICAS} replicas": results(replicas), "one plain device": results(plain)}
        largest_difference = largest_weight_difference(replicas, plain)
    print_table(rows, largest_difference)
    worst = min(row["test_accuracy"] for row in rows.values())
    if worst < MINIMUM_TEST_ACCURACY:
        sys.exit(f"test accuracy {worst:.4f} is below the expected {MINIMUM_TEST_ACCURACY}")


def run(command: list[str], **environ: str) -> None:
    print("\n$", *(f"{name}={value}" for name, value in environ.items()), *command, flush=True)
    status = subprocess.run(command, env=os.environ | environ).returncode
    if status:
        sys.exit(status)


def one_device_environ() -> dict[str, str]:
    """As many threads in one process as the launcher gives to all replicas together, and no second device."""
    num_cores = len(os.sched_getaffinity(0))
    num_threads = str(max(num_cores // NUM_REPLICAS, 1) * NUM_REPLICAS)
    environ = {"OMP_NUM_THREADS": num_threads, "TF_NUM_INTRAOP_THREADS": num_threads}
    first_device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return environ | {"CUDA_VISIBLE_DEVICES": first_device}


def results(folder: pathlib.Path) -> dict[str, float]:
    return json.loads((folder / "results.json").read_text())


def largest_weight_difference(*folders: pathlib.Path) -> float:
    # Loading needs no framework: what was saved under a strategy is a plain Keras model.
    os.environ["KERAS_BACKEND"] = "numpy"
    import keras
    import numpy as np

    models = [keras.saving.load_model(folder / "digits.keras", compile=False) for folder in folders]
    pairs = zip(*(model.get_weights() for model in models), strict=True)
    return max(float(np.abs(one - other).max()) for one, other in pairs)


def print_table(rows: dict[str, dict[str, float]], largest_difference: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "test accuracy", "seconds per epoch", "images per second", title="examples/digits.py")
    for name, row in rows.items():
        epoch_s = row["epoch_s"]
        images_per_second = row["num_train_images"] / epoch_s
        table.add_row(name, f"{row['test_accuracy']:.4f}", f"{epoch_s:.3f}", f"{images_per_second:.0f}")
    console = Console()
    console.print(table)
    console.print(f"largest difference between the two sets of weights: {largest_difference:.2g}")


if __name__ == "__main__":
    main()
