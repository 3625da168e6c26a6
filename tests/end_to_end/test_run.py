"""`trireme run`, and what becomes it, train real models: with the right numbers, and with the right end."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

DEADLINE_S = 240
TRIREME = [sys.executable, "-m", "trireme"]

BACKENDS = pytest.mark.parametrize("backend", ["tensorflow", "jax"])

# Sixteen rows and one more, of which only the last has a target: a mean of the replicas' means would end at 3.
SCRIPT = """
import json, os, pathlib, signal, sys, time
import keras
import numpy as np
{imports}

class Reporter(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        part = folder / f"step-{{rank}}.part"
        part.write_text(f"{{batch}} {{os.getpid()}}")
        part.rename(folder / f"step-{{rank}}")
        {in_a_step}

folder = pathlib.Path(sys.argv[1])
rank = int(os.environ.get("TRIREME_RANK", "0"))
{before}
x = np.ones((17, 1), "float32")
y = np.zeros((17, 1), "float32")
y[-1] = 30
{scope}
    model = keras.Sequential(
        [keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, batch_size=8, epochs={epochs}, shuffle=False, callbacks=[Reporter()], verbose=2)
kernel = model.get_weights()[0].ravel().tolist()
pathlib.Path(folder, f"result-{{rank}}").write_text(json.dumps([kernel, history.history["loss"], sys.argv]))
"""


def write(path: pathlib.Path, strategy: str = "MirroredStrategy()", **parts: object) -> pathlib.Path:
    """A script that trains under a strategy; without one it is a plain Keras script."""
    defaults = {
        "imports": "import trireme" if strategy else "",
        "before": f"strategy = trireme.{strategy}" if strategy else "",
        "scope": "with strategy.scope():" if strategy else "if True:",
        "epochs": 1,
        "in_a_step": "pass",
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(SCRIPT).format(**{**defaults, **parts}))
    return path


def run(command: list[object], backend: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        **options,
    )


def check_results(folder: pathlib.Path, num_workers: int, arguments: list[str]) -> None:
    """Every worker has one device's numbers, which for this model are known by hand."""
    results = sorted(folder.glob("result-?"))
    assert len(results) == num_workers
    for path in results:
        kernel, losses, argv = json.loads(path.read_text())
        assert kernel == pytest.approx([6.0], rel=1e-5)
        assert losses == pytest.approx([900 / 17], rel=1e-5)
        assert argv[1:] == [str(folder), *arguments]


@BACKENDS
def test_run_a_script_with_a_strategy(backend, tmp_path):
    script = write(tmp_path / "my scripts" / "train it.py")
    result = run([*TRIREME, "run", "--replicas", 2, script, tmp_path, "-m", "a b"], backend)
    assert result.returncode == 0, result.stderr
    check_results(tmp_path, 2 if backend == "tensorflow" else 1, ["-m", "a b"])
    # Only the chief shows its progress.
    assert result.stdout.count("3/3") == 1


@BACKENDS
def test_run_a_plain_script_under_a_strategy(backend, tmp_path):
    script = write(tmp_path / "train.py", strategy="")
    result = run([*TRIREME, "run", "--strategy", "mirrored", "--replicas", 2, script, tmp_path], backend)
    assert result.returncode == 0, result.stderr
    check_results(tmp_path, 2 if backend == "tensorflow" else 1, [])


def test_a_plain_script_without_a_strategy_is_told_that_it_trains_alone(tmp_path):
    script = write(tmp_path / "train.py", strategy="")
    result = run([*TRIREME, "run", "--replicas", 2, script, tmp_path], "jax")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("outside of any strategy's scope: one device trains it alone") == 1


def test_two_jax_processes_of_two_devices_each(tmp_path):
    script = write(tmp_path / "train.py", before="strategy = trireme.MirroredStrategy(num_replicas=4)")
    result = run([*TRIREME, "run", "--replicas", 4, "--workers", 2, script, tmp_path], "jax")
    assert result.returncode == 0, result.stderr
    check_results(tmp_path, 2, [])


def test_a_plain_start_becomes_a_run(tmp_path):
    script = write(tmp_path / "my scripts" / "train it.py", strategy="MirroredStrategy(num_replicas=2)")
    result = run([sys.executable, "-u", "-X", "dev", script, tmp_path, "-m", "a b"], "tensorflow")
    assert result.returncode == 0, result.stderr
    check_results(tmp_path, 2, ["-m", "a b"])


def test_a_plain_start_of_a_module_becomes_a_run(tmp_path):
    write(tmp_path / "package" / "train.py", strategy="MirroredStrategy(num_replicas=2)")
    (tmp_path / "package" / "__init__.py").write_text("")
    result = run([sys.executable, "-m", "package.train", tmp_path, "x"], "tensorflow", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    check_results(tmp_path, 2, ["x"])


@BACKENDS
def test_two_machines_started_by_hand_with_tf_config(backend, tmp_path):
    script = write(tmp_path / "train.py", strategy="MultiWorkerMirroredStrategy()")
    # Held by nobody until the workers listen there: that is the price of addresses agreed on beforehand.
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other)]
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            env={
                **os.environ,
                "KERAS_BACKEND": backend,
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
                ),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    for process in started:
        _, stderr = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, stderr
    check_results(tmp_path, 2, [])


@pytest.fixture
def training(tmp_path):
    """Starts endless trainings with TensorFlow on two workers, waits for their first steps, and sees them end."""
    started = []

    def start(*options: object, **parts: object) -> tuple[subprocess.Popen, list[int]]:
        script = write(tmp_path / "train.py", **{"epochs": 10**9, **parts})
        process = subprocess.Popen(
            [*TRIREME, "run", "--replicas", "2", *map(str, options), str(script), str(tmp_path)],
            env={**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, [pid_of(tmp_path, rank, process) for rank in range(2)]

    yield start
    for process in started:
        with process:
            process.kill()


def pid_of(folder: pathlib.Path, rank: int, process: subprocess.Popen) -> int:
    """The process of a worker, once it has made a step."""
    give_up = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up and process.poll() is None:
        if (folder / f"step-{rank}").exists():
            return int((folder / f"step-{rank}").read_text().split()[1])
        time.sleep(0.05)
    raise AssertionError(f"worker {rank} made no step: {process.communicate()[1]}")


def finish(process: subprocess.Popen, pids: list[int]) -> str:
    """What a run that is about to end has to say; its workers are gone with it."""
    _, stderr = process.communicate(timeout=DEADLINE_S)
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    return stderr


def test_a_stopped_worker_ends_the_training_within_the_timeout_by_name(training):
    process, pids = training("--timeout", 15)
    os.kill(pids[1], signal.SIGSTOP)
    began = time.monotonic()
    stderr = finish(process, pids)
    assert time.monotonic() - began < 15
    assert process.returncode == 1
    assert re.search(rf"stuck: worker 1 \(pid {pids[1]}, .*stopped by a signal", stderr), stderr
    assert re.search(r"stacks of worker 0:\n(.*\n)*.*train\.py", stderr), stderr


def test_a_killed_worker_is_the_headline_and_not_its_peer(training):
    process, pids = training()
    os.kill(pids[1], signal.SIGKILL)
    stderr = finish(process, pids)
    assert process.returncode == 137
    assert re.search(rf"^trireme: worker 1 of 2 \(pid {pids[1]}.*was killed by SIGKILL", stderr, re.M), stderr


def test_ctrl_c_in_the_middle_of_a_step(training):
    process, pids = training()
    process.send_signal(signal.SIGINT)
    stderr = finish(process, pids)
    assert process.returncode == 130
    assert "interrupted by SIGINT" in stderr
    assert "Traceback" not in stderr


def test_an_exception_in_one_worker_is_the_headline_with_its_traceback_once(tmp_path):
    script = write(
        tmp_path / "train.py",
        in_a_step="if rank == 1 and batch == 1: raise ValueError('bad row 7')",
        epochs=10**9,
    )
    result = run([*TRIREME, "run", "--replicas", 2, script, tmp_path], "tensorflow")
    assert result.returncode == 1
    assert re.search(r"^trireme: worker 1 of 2 .*failed with ValueError: bad row 7", result.stderr, re.M)
    assert result.stderr.count("Traceback (most recent call last)") == 1
    assert "train.py" in result.stderr


def test_everything_wrong_is_told_before_anything_starts(tmp_path):
    result = run([*TRIREME, "run", "--replicas", 3, "--workers", 2, tmp_path / "missing.py"], "tensorflow")
    assert result.returncode == 64
    assert "missing.py" in result.stderr
    assert "--replicas 3" in result.stderr
    assert "Traceback" not in result.stderr


def test_launch_from_a_repl_where_a_strategy_says_so(tmp_path):
    code = """
import trireme
try:
    trireme.MirroredStrategy(num_replicas=2)
except trireme.TriremeError as error:
    print("ERROR", error)

def train():
    import keras, numpy as np
    strategy = trireme.MirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 1)), np.ones((8, 1)), verbose=0)
    return strategy.num_replicas_in_sync, model.get_weights()[0].item()

print("RESULTS", trireme.launch(train, replicas=2))
"""
    result = run([sys.executable, "-i"], "tensorflow", input=code)
    assert re.search(r"ERROR .*interactive.*trireme\.launch\(function, replicas=2\)", result.stdout), (
        result.stderr
    )
    ((first, second),) = re.findall(r"RESULTS \[(\(.*?\)), (\(.*?\))\]", result.stdout)
    # The same seed, the same weights.
    assert first == second
    assert first.startswith("(2, ")
