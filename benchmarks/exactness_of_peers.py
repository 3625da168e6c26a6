"""What tf.distribute and keras.distribution give where the right numbers can be worked out by hand.

python benchmarks/exactness_of_peers.py            trains every case in every way, and writes
                                                   benchmarks/results/exactness.json and docs/exactness.md
python benchmarks/exactness_of_peers.py --report   writes docs/exactness.md from those results

Each way runs in processes of its own. What a way cannot run is recorded as the error it ended with.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "exactness.json"
PAGE = ROOT / "docs" / "exactness.md"
BEGIN = "<!-- peers begin: written by `make exactness-report` -->"
END = "<!-- peers end -->"
TIMEOUT_S = 300
NOT_TRIED = "not tried after the first error"

# name: (what it is, kernel, loss); see `train`.
CASES = {
    "last batch of 3": ("19 rows, `y` = 0 but the last = 30, batch 8", 2.0, 47.368421),
    "last batch of 1": ("17 rows, last `y` = 30, batch 8", 6.0, 52.941176),
    "weights, sum_over_batch_size": ("`y` = 10 ×4 then 20 ×4, weights 1 ×4 then 0 ×4", 1.0, 50.0),
    "weights, mean_with_sample_weight": ("the same, divided by the weights", 2.0, 100.0),
    "weights, sum": ("the same, not divided", 8.0, 400.0),
    "uneven mask": ("two rows of four tokens, two of one", 0.4, 20.0),
    "clipped by the global norm": ("`y` = 50 and -49, batch 2, SGD(1.0, `global_clipnorm=1`)", 1.0, 2450.5),
    "L2": ("kernel one with L2(0.5), `x` = `y` = 1, 4 rows", 0.9, 0.5),
    "accumulated": ("32 rows, `y` = 0..31, batch 8, 4 micro-batches per update", 3.1, 325.5),
    "batch norm": ("rows 0 ×4 then 10 ×4, momentum 0: moving mean and variance", 5.0, 25.0),
}

# name: (backend, processes)
WAYS = {
    "one device": ("tensorflow", 1),
    "MirroredStrategy": ("tensorflow", 1),
    "MultiWorkerMirroredStrategy": ("tensorflow", 2),
    "DataParallel": ("jax", 1),
    "trireme, tensorflow": ("tensorflow", 2),
    "trireme, jax": ("jax", 1),
    "trireme, torch": ("torch", 2),
}


def scope_of(way: str) -> Callable[[], Any]:
    """Sets two replicas up and returns what makes the context that a model is made in; None for one device."""
    if way.startswith("trireme"):
        import trireme

        return trireme.MirroredStrategy(sync_batch_norm=True).scope
    if way in ("MirroredStrategy", "MultiWorkerMirroredStrategy"):
        import tensorflow as tf

        if way == "MultiWorkerMirroredStrategy":
            return tf.distribute.MultiWorkerMirroredStrategy().scope
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope
    if way == "DataParallel":
        import keras

        keras.distribution.set_distribution(
            keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"], auto_shard_dataset=False)
        )
    import contextlib

    return contextlib.nullcontext


def train(name: str, scope: Callable[[], Any]) -> tuple[float, float]:
    """Trains the case `name` and returns the two numbers that are known of it."""
    import keras
    import numpy as np

    rows = {
        "last batch of 3": 19,
        "last batch of 1": 17,
        "accumulated": 32,
        "clipped by the global norm": 2,
        "L2": 4,
    }
    count = rows.get(name, 8)
    x, y, weights = np.ones((count, 1), "float32"), np.zeros((count, 1), "float32"), None
    loss, options, layer = "mse", {}, {"kernel_initializer": "zeros"}
    if name.startswith("last batch"):
        y[-1] = 30
    elif name.startswith("weights"):
        y[:4], y[4:] = 10, 20
        weights = np.repeat(np.float32([1, 0]), 4)
        loss = keras.losses.MeanSquaredError(reduction=name.partition(", ")[2])
    elif name == "clipped by the global norm":
        y[0], y[1] = 50, -49
        options = {"learning_rate": 1.0, "global_clipnorm": 1.0}
    elif name == "L2":
        y[:] = 1
        layer = {"kernel_initializer": "ones", "kernel_regularizer": keras.regularizers.L2(0.5)}
    elif name == "accumulated":
        y[:, 0] = np.arange(32)
        options = {"gradient_accumulation_steps": 4}
    with scope():
        layers = [keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False, **layer)]
        if name == "uneven mask":
            x = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]])
            y = np.zeros((4, 4, 1), "float32")
            y[2, 0] = y[3, 0] = 10
            table = keras.layers.Embedding(
                2, 1, mask_zero=True, embeddings_initializer="ones", trainable=False
            )
            layers = [keras.layers.Input((4,)), table, layers[1]]
        elif name == "batch norm":
            x = np.repeat(np.float32([0, 10]), 4)[:, None]
            # The peers have a switch of the layer's own; ours is the strategy's.
            is_switched = keras.backend.backend() == "tensorflow"
            layers[1] = keras.layers.BatchNormalization(momentum=0.0, synchronized=is_switched)
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(**{"learning_rate": 0.1, **options}), loss)
    batch_size = min(8, len(x))
    history = model.fit(x, y, sample_weight=weights, batch_size=batch_size, shuffle=False, verbose=0)
    if name == "batch norm":
        mean, variance = model.get_weights()[2:]
        return float(mean[0]), float(variance[0])
    return float(model.get_weights()[-1].ravel()[0]), float(history.history["loss"][0])


def train_all(way: str) -> dict[str, Any]:
    """Returns `{case: [numbers]}` or `{case: error}` of one way, in a process of that way."""
    scope, found = scope_of(way), {}
    for name in CASES:
        try:
            found[name] = [round(number, 6) for number in train(name, scope)]
        except Exception as error:
            traceback.print_exc()
            found[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
            if way == "MultiWorkerMirroredStrategy":
                # The other worker waits in a collective that will not come.
                return found
    return found


def run_way(way: str) -> dict[str, Any]:
    """Returns what `train_all` finds in new processes."""
    backend, num_processes = WAYS[way]
    command = [sys.executable, __file__, "--way", way]
    environ = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if way.startswith("trireme"):
        launcher = [sys.executable, "-m", "trireme", "run", "--replicas", "2", "--backend", backend]
        return _output(subprocess.Popen([*launcher, *command[1:]], env=environ, **_PIPES))
    if way == "DataParallel":
        environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    if num_processes == 1:
        return _output(subprocess.Popen(command, env=environ, **_PIPES))
    ports = [_free_port() for _ in range(num_processes)]
    processes = []
    for index in range(num_processes):
        task = {"type": "worker", "index": index}
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        config = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
        processes.append(subprocess.Popen(command, env={**environ, **config}, **_PIPES))
    try:
        return _output(processes[0])
    finally:
        for process in processes:
            process.kill()
            process.wait()


_PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}


def _output(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {name: f"did not end within {TIMEOUT_S} s" for name in CASES}
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        return {name: f"the process ended with {process.returncode}" for name in CASES}
    found: dict[str, Any] = json.loads(lines[-1])
    return {name: found.get(name, NOT_TRIED) for name in CASES}


def _free_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return int(reserved.getsockname()[1])


def table(result: Mapping[str, Any]) -> str:
    """Returns the results as Markdown: what is right, and what each way gives."""
    ways = result["ways"]
    lines = [
        "Measured with "
        + ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        + f" on {result['date'][:10]}. Kernel and epoch loss; **bold** is not what one device gives.",
        "",
        "| case | right | " + " | ".join(f"`{way}`" if " " not in way else way for way in ways) + " |",
        "|---|---|" + "---|" * len(ways),
    ]
    for name, (words, *right) in CASES.items():
        cells = [_cell(found[name], right) for found in ways.values()]
        lines.append(f"| {name}: {words} | {_numbers(right)} | " + " | ".join(cells) + " |")
    errors = {
        (way, cell)
        for way, found in ways.items()
        for cell in found.values()
        if isinstance(cell, str) and cell != NOT_TRIED
    }
    if errors:
        lines += ["", "Errors:", "", *(f"- {way}: `{error}`" for way, error in sorted(errors))]
    return "\n".join(lines)


def _cell(found: Any, right: list[float]) -> str:
    if isinstance(found, str):
        return "not tried" if found == NOT_TRIED else "**error**"
    is_right = all(abs(a - b) <= 1e-4 * max(1, abs(b)) for a, b in zip(found, right, strict=True))
    return _numbers(found) if is_right else f"**{_numbers(found)}**"


def _numbers(numbers: list[float]) -> str:
    return " / ".join(f"{number:.6g}" for number in numbers)


def with_table(page: str, result: Mapping[str, Any]) -> str:
    """Returns the page with everything between its marks replaced."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table(result)}\n\n{END}{after}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--report", action="store_true", help="only write docs/exactness.md")
    arguments = parser.parse_args()
    if arguments.way:
        found = train_all(arguments.way)
        print(json.dumps(found), flush=True)
        return
    if not arguments.report:
        ways = {}
        for way in WAYS:
            ways[way] = run_way(way)
            print(way, ways[way], flush=True)
        result = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in ("keras", "jax", "torch")}
            | {"tensorflow": _tensorflow_version()},
            "ways": ways,
        }
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), json.loads(RESULTS.read_text())))


def _tensorflow_version() -> str:
    from importlib.metadata import PackageNotFoundError

    try:
        return version("tensorflow")
    except PackageNotFoundError:
        return version("tensorflow-cpu")


if __name__ == "__main__":
    main()
