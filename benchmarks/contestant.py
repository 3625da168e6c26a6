"""One process of one contestant: a Keras script whose training stands still until it is its turn.

Each epoch of one long `fit` is a block. Between two blocks the process waits for the referee's word, so that
contestants alternate in short turns although all of them are alive, warm and compiled.

`scaling.py` starts it, as `python contestant.py ...` or `trireme run --replicas N contestant.py ...`.
"""

import argparse
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from line import Line
from models import Workload, workloads

# More than any benchmark plays: the referee ends the training.
_NUM_EPOCHS = 1_000_000


class Turns(keras.callbacks.Callback):
    """Times each epoch from the referee's word to the epoch's end; the first one compiles and warms up."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line
        self._began: tuple[float, float] | None = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # The logs are numbers here, so everything that was dispatched to a device has been computed.
        now = (time.perf_counter(), time.process_time())
        if self._began is None:
            self._line.send({"num_parameters": self.model.count_params()})
        else:
            self._line.send({"wall_s": now[0] - self._began[0], "cpu_s": now[1] - self._began[1]})
        if self._line.receive() == "stop":
            self.model.stop_training = True
        self._began = (time.perf_counter(), time.process_time())


def scopes_of(strategy: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Returns what makes the context in which a model of this contestant is made."""
    if strategy == "trireme":
        import trireme

        return trireme.MirroredStrategy().scope
    if strategy == "peer" and keras.backend.backend() == "tensorflow":
        return _mirrored_strategy().scope
    if strategy == "peer":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    return contextlib.nullcontext


def _mirrored_strategy() -> Any:
    import tensorflow as tf

    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def train(workload: Workload, num_parts: int, line: Line) -> None:
    """Trains a model by turns until the referee says "stop"."""
    batch_size = workload.global_batch // num_parts
    x, y = workload.make_rows(batch_size * workload.num_steps)
    model = workload.build()
    model.fit(x, y, batch_size=batch_size, epochs=_NUM_EPOCHS, verbose=0, callbacks=[Turns(line)])


def main() -> None:
    """Says hello, then trains what the referee names until it says that all is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--strategy", choices=("plain", "trireme", "peer"), required=True)
    parser.add_argument(
        "--parts", type=int, default=1, help="independent processes that share a global batch"
    )
    arguments = parser.parse_args()
    line = Line.to(arguments.address)
    line.send({"name": arguments.name, "pid": os.getpid(), "versions": _versions()})
    scope = scopes_of(arguments.strategy)
    while (command := line.receive()) != "end":
        workload = workloads(keras.backend.backend(), command["is_quick"])[command["workload"]]
        workload = replace(workload, num_steps=command["num_steps"])
        with scope():
            train(workload, arguments.parts, line)


def _versions() -> dict[str, str]:
    import importlib

    framework = importlib.import_module(keras.backend.backend())
    return {
        "keras": keras.__version__,
        keras.backend.backend(): framework.__version__,
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    main()
