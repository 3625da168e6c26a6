"""`trireme run --servers N`: from keys to the last goodbye, and what becomes of processes that are killed or hang."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

DEADLINE_S = 150
NUM_ROWS, NUM_EPOCHS = 320, 4

SCRIPT = """
import json, os, pathlib, signal, sys, time
import keras
import numpy as np
import trireme

folder = pathlib.Path(sys.argv[1])
strategy = trireme.ParameterServerStrategy()
rank = strategy.cluster.rank


def say(what):
    (folder / f"{what}.part").write_text(str(os.getpid()))
    (folder / f"{what}.part").rename(folder / what)


class Faults(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        say(f"trains-{rank}")

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if "worker" in sys.argv and rank == 1 and self.epoch == 1 and not (folder / "blocked").exists():
            say("blocked")
            signal.pause()
        if "server" in sys.argv and rank == 0 and self.epoch == 2 and batch == 1:
            say("server please")
            while not (folder / "server was killed").exists():
                time.sleep(0.01)


x = np.random.default_rng(0).normal(size=(%(num_rows)d, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
count = keras.metrics.MeanMetricWrapper(lambda y_true, y_pred: keras.ops.ones_like(y_true[:, 0]), name="ones")


class Rows(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        rows.append(float(keras.ops.convert_to_numpy(count.count)))


rows = []
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=[count])
history = model.fit(x, y, batch_size=8, epochs=%(num_epochs)d, callbacks=[Faults(), Rows()], verbose=2)
result = {"weights": [w.tolist() for w in model.get_weights()], "history": history.history, "rows": rows}
(folder / f"result-{rank}").write_text(json.dumps(result))
"""


@pytest.fixture
def start(tmp_path):
    """A function that starts the script by a command; what it started is gone afterwards."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT % {"num_rows": NUM_ROWS, "num_epochs": NUM_EPOCHS})
    started = []

    def start(command, *arguments, **environ):
        started.append(
            subprocess.Popen(
                [*command, str(script), str(tmp_path), *arguments],
                env={**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1", **environ},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=30)


def wait_for(path: pathlib.Path, process: subprocess.Popen) -> int:
    give_up = time.monotonic() + DEADLINE_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > give_up:
            process.kill()
            raise AssertionError(f"{path.name} never came: {process.communicate()}")
        time.sleep(0.02)
    return int(path.read_text())


def servers_of(launcher: subprocess.Popen) -> list[int]:
    """The process ids of the parameter servers that a launcher has started, in rank order."""
    found = {}
    for child in pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        if b"trireme.launch.server_process" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
            environ = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            [rank] = [entry for entry in environ if entry.startswith(b"TRIREME_RANK=")]
            found[rank] = int(child)
    return [found[rank] for rank in sorted(found)]


def trireme_run(*options: str) -> list[str]:
    return [sys.executable, "-m", "trireme", "run", *options]


def test_a_killed_worker_and_a_killed_server_are_started_again(start, tmp_path):
    launcher = start(
        trireme_run("--workers", "2", "--servers", "2"), "worker", "server", TRIREME_SNAPSHOT_INTERVAL_S="0.1"
    )
    os.kill(wait_for(tmp_path / "blocked", launcher), signal.SIGKILL)
    wait_for(tmp_path / "server please", launcher)
    # The one that hands out the rows.
    os.kill(servers_of(launcher)[0], signal.SIGKILL)
    (tmp_path / "server was killed").touch()
    output, errors = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == 0, errors
    assert "2 workers and 2 parameter servers, output in" in errors
    assert "trireme: worker 1 (pid " in errors
    assert "was killed by SIGKILL; it is started again" in errors
    assert "trireme: server 0 (pid " in errors
    first, second = [json.loads((tmp_path / f"result-{rank}").read_text()) for rank in (0, 1)]
    # Whatever died, each row was counted once in each epoch.
    assert first["rows"] == [NUM_ROWS] * NUM_EPOCHS
    assert second["rows"] == [NUM_ROWS] * len(second["rows"])
    assert first["history"]["loss"][-1] < 0.5 * first["history"]["loss"][0]
    for weight, other in zip(first["weights"], second["weights"], strict=True):
        np.testing.assert_array_equal(weight, other)
    assert output.count(f"Epoch {NUM_EPOCHS}/{NUM_EPOCHS}") == 1


def test_a_plain_start_becomes_a_run_whose_paused_server_is_named(start, tmp_path):
    launcher = start([sys.executable], "server", TRIREME_TIMEOUT_S="8")
    wait_for(tmp_path / "server please", launcher)
    [server] = servers_of(launcher)
    os.kill(server, signal.SIGSTOP)
    (tmp_path / "server was killed").touch()
    _, errors = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == 75, errors
    assert "PeerTimeout: parameter server 0 at 127.0.0.1:" in errors
    assert "was silent for 8." in errors
