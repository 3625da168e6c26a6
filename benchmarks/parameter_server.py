"""How fast is asynchronous training, and what does it buy?

Three questions, each answered by ratios within one run:

- steps: updates per second of all workers, against `tf.distribute.experimental.ParameterServerStrategy` with legacy
  Keras (`make benchmark-parameter-server` installs tf_keras), two workers and one server each, on an MLP and on an
  embedding model;
- slow: with one of two workers slowed four times, updates per second against the sum of what each worker does alone. A
  worker's speed is made by a pause in each step, so that the workers do not compete for cores. Synchronously each
  worker has half of the rows of a step, so half of the pause;
- loss: validation loss after equal wall time with that slow worker, synchronous and asynchronous, as a plot.

    python benchmarks/parameter_server.py [--quick] [--only steps slow loss] [--rounds 3]

Writes benchmarks/results/parameter_server.json, where what `--only` leaves out stays as it was, and for `loss`
docs/parameter_server.png. For a quiet machine.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PLOT = ROOT / "docs" / "parameter_server.png"
PAUSE_S, SLOWER = 0.02, 4
# Of each worker, in units of PAUSE_S per step of a whole batch.
PAUSES = [1, SLOWER]
NUM_WORDS = 500_000
DEADLINE_S = 600.0


def make_model(keras: Any, name: str) -> Any:
    """One of the two models, in Keras 3 or in legacy Keras."""
    layers = keras.layers
    if name == "mlp":
        model = keras.Sequential(
            [
                layers.InputLayer((784,)),
                layers.Dense(256, activation="relu"),
                layers.Dense(256, activation="relu"),
                layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss)
        return model
    words = keras.Input((8,), dtype="int32")
    # 128 MB: like all tables of that size, ours is on the servers only.
    rows = layers.Embedding(NUM_WORDS, 64)(words)
    model = keras.Model(words, layers.Dense(1)(layers.GlobalAveragePooling1D()(rows)))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def make_rows(name: str, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    luck = np.random.default_rng(1)
    if name == "mlp":
        centres = luck.normal(size=(10, 784))
        labels = luck.integers(0, 10, num_rows)
        return (0.1 * centres[labels] + luck.normal(size=(num_rows, 784))).astype("float32"), labels.astype(
            "int32"
        )
    return luck.integers(0, NUM_WORDS, (num_rows, 8)).astype("int32"), luck.normal(size=(num_rows, 1)).astype(
        "float32"
    )


def train_with_trireme(options: dict[str, Any]) -> None:
    """A worker of ours: the time of each epoch goes to a file."""
    import keras

    import trireme

    class Clock(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.starts = [time.perf_counter()]
            self.losses: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rank = int(os.environ.get("TRIREME_RANK", "0"))
            if options["pauses"]:
                time.sleep(PAUSE_S * options["pauses"][rank])

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.starts.append(time.perf_counter())
            self.losses.append((logs or {}).get("val_loss", 0.0))

    keras.utils.set_random_seed(1)
    strategy: Any = getattr(trireme, options["strategy"])()
    with strategy.scope():
        model = make_model(keras, options["model"])
    x, y = make_rows(options["model"], options["num_steps"] * options["batch"])
    clock = Clock()
    validation = {"validation_data": make_rows(options["model"], 512)} if options["validates"] else {}
    model.fit(
        x,
        y,
        batch_size=options["batch"],
        epochs=options["epochs"],
        verbose=0,
        callbacks=[clock],
        **validation,
    )
    if trireme.is_chief():
        epochs_s = [end - start for start, end in itertools.pairwise(clock.starts)]
        _write(options["result"], {"epochs_s": epochs_s, "losses": clock.losses})


def train_with_tensorflow(options: dict[str, Any]) -> None:
    """A process of the peer's: the coordinator, or one that serves until it is killed."""
    import tensorflow as tf
    import tf_keras

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        server.join()
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = make_model(tf_keras, options["model"])
    x, y = make_rows(options["model"], options["num_steps"] * options["batch"])

    def dataset(_: Any) -> Any:
        return (
            tf.data.Dataset.from_tensor_slices((x, y))
            .shuffle(len(x))
            .repeat()
            .batch(options["batch"])
            .prefetch(8)
        )

    class Clock(tf_keras.callbacks.Callback):
        starts = [time.perf_counter()]

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.starts.append(time.perf_counter())

    creator = tf_keras.utils.experimental.DatasetCreator(dataset)
    model.fit(
        creator,
        steps_per_epoch=options["num_steps"],
        epochs=options["epochs"],
        verbose=0,
        callbacks=[Clock()],
    )
    _write(
        options["result"], {"epochs_s": [b - a for a, b in itertools.pairwise(Clock.starts)], "losses": []}
    )


def run_trireme(num_workers: int, **options: Any) -> dict[str, Any]:
    """Trains with `num_workers` workers of ours and returns what the chief wrote."""
    options = {"strategy": "ParameterServerStrategy", "pauses": [], "validates": False, **options}
    command = [sys.executable, "-m", "trireme", "run", "--backend", "tensorflow"]
    if options["strategy"] == "ParameterServerStrategy":
        command += ["--workers", str(num_workers), "--servers", "1"]
    else:
        command += ["--replicas", str(num_workers)]

    def start(path: str) -> None:
        text = json.dumps({**options, "result": path})
        subprocess.run([*command, __file__, "--trireme", text], check=True, timeout=DEADLINE_S)

    return _result_of(start)


def run_tensorflow(**options: Any) -> dict[str, Any]:
    """The same with `tf.distribute`: two workers, one server and the coordinator, which its design adds."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    cluster = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}
    others = [("ps", 0), ("worker", 0), ("worker", 1)]

    def start(path: str) -> None:
        text = json.dumps({**options, "result": path})
        processes = []
        try:
            for kind, index in [*others, ("chief", 0)]:
                config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
                environ = {
                    **os.environ,
                    "TF_CONFIG": config,
                    "TF_USE_LEGACY_KERAS": "1",
                    "GRPC_FAIL_FAST": "use_caller",
                }
                processes.append(
                    subprocess.Popen([sys.executable, __file__, "--tensorflow", text], env=environ)
                )
            if processes[-1].wait(DEADLINE_S):
                raise RuntimeError("tf.distribute's coordinator failed")
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
                process.wait()

    return _result_of(start)


def measure_steps(is_quick: bool) -> dict[str, Any]:
    """Updates per second of two workers with one server, ours and the peer's."""
    found = {}
    for model, batch in (("mlp", 64), ("embedding", 256)):
        options = {
            "model": model,
            "batch": batch,
            "num_steps": 50 if is_quick else 400,
            "epochs": 2 if is_quick else 4,
        }
        ours = options["num_steps"] / _steady_s(run_trireme(2, **options))
        peer = options["num_steps"] / _steady_s(run_tensorflow(**options))
        found[model] = {"steps_per_s": ours, "peer_steps_per_s": peer, "ratio": ours / peer, "target": 2.0}
    return found


def measure_slow(is_quick: bool) -> dict[str, Any]:
    """One of two workers four times slower, against both alone."""
    options = {
        "model": "mlp",
        "batch": 64,
        "num_steps": 60 if is_quick else 300,
        "epochs": 2 if is_quick else 3,
    }
    speeds = {
        name: options["num_steps"] / _steady_s(run_trireme(len(pauses), pauses=pauses, **options))
        for name, pauses in {"fast alone": [1], "slow alone": [SLOWER], "together": PAUSES}.items()
    }
    synchronous = run_trireme(2, strategy="MirroredStrategy", pauses=_halves(PAUSES), **options)
    speeds["synchronous"] = options["num_steps"] / _steady_s(synchronous)
    ratio = speeds["together"] / (speeds["fast alone"] + speeds["slow alone"])
    return {"steps_per_s": speeds, "ratio": ratio, "target": 0.9}


def measure_loss(is_quick: bool) -> dict[str, Any]:
    """Validation loss over time with a slow worker."""
    options = {"model": "mlp", "batch": 64, "num_steps": 60 if is_quick else 200, "validates": True}
    curves = {}
    for name, strategy, epochs, pauses in (
        ("asynchronous", "ParameterServerStrategy", 10, PAUSES),
        ("synchronous", "MirroredStrategy", 5, _halves(PAUSES)),
    ):
        result = run_trireme(2, strategy=strategy, pauses=pauses, epochs=2 if is_quick else epochs, **options)
        curves[name] = {"s": np.cumsum(result["epochs_s"]).tolist(), "val_loss": result["losses"]}
    return curves


def plot(rounds: list[dict[str, Any]]) -> None:
    """Draws the curves of all rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for colour, name in (("tab:blue", "asynchronous"), ("tab:orange", "synchronous")):
        for number, curves in enumerate(rounds):
            label = name if number == 0 else None
            axes.plot(curves[name]["s"], curves[name]["val_loss"], marker=".", color=colour, label=label)
    axes.set(xlabel="seconds", ylabel="validation loss", title="two workers, one of them four times slower")
    axes.legend()
    figure.savefig(PLOT, dpi=100, bbox_inches="tight")


def _halves(pauses: list[int]) -> list[float]:
    return [pause / 2 for pause in pauses]


def _steady_s(result: dict[str, Any]) -> float:
    """The median epoch after the first, which compiles."""
    return statistics.median(result["epochs_s"][1:])


def _result_of(start: Callable[[str], None]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        start(path)
        found: dict[str, Any] = json.loads(pathlib.Path(path).read_text())
        return found


def _write(path: str, value: dict[str, Any]) -> None:
    pathlib.Path(path).write_text(json.dumps(value))


def main() -> None:
    measures = {"steps": measure_steps, "slow": measure_slow, "loss": measure_loss}
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="only to see that everything runs")
    parser.add_argument("--only", nargs="+", choices=measures, default=list(measures))
    parser.add_argument("--rounds", type=int, default=3, help="how often each measure is made")
    parser.add_argument("--trireme", help=argparse.SUPPRESS)
    parser.add_argument("--tensorflow", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trireme:
        train_with_trireme(json.loads(arguments.trireme))
    elif arguments.tensorflow:
        train_with_tensorflow(json.loads(arguments.tensorflow))
    else:
        from scaling import machine

        rounds = range(1 if arguments.quick else arguments.rounds)
        before = {"date": datetime.date.today().isoformat(), "load_average_before": os.getloadavg()[0]}
        results = {name: [measures[name](arguments.quick) for _ in rounds] for name in arguments.only}
        report = {**before, "machine": machine(), **results}
        print(json.dumps(report, indent=1))
        if not arguments.quick:
            if "loss" in results:
                plot(results["loss"])
            RESULTS.mkdir(exist_ok=True)
            path = RESULTS / "parameter_server.json"
            kept = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps(kept | report, indent=1) + "\n")


if __name__ == "__main__":
    main()
