"""PyTorch's default process group is left alone, also where Keras would take it for an order to exchange by itself."""

import pytest

from trireme.testing import run_workers


def keras_316_before_a_default_group(folder, version):
    """Trains with a default group of the script's own, under a Keras that does what 3.16 does about it."""
    import keras
    import numpy as np
    import torch.distributed
    from keras.src.backend.torch.trainer import TorchTrainer
    from keras.src.trainers.trainer import Trainer

    import trireme
    from trireme.backends.torch.train_step import keep_keras_from_exchanging

    def initialize_ddp(self):
        done.append("gradients")

    def get_metrics_result(self):
        done.append("metrics")
        for variable in self.metrics_variables:
            torch.distributed.all_reduce(variable.value)
        return Trainer.get_metrics_result(self)

    def make_train_function(self, force=False):
        self._initialize_ddp()
        return original(self, force)

    done = []
    strategy = trireme.MirroredStrategy()
    had_default_group = torch.distributed.is_initialized()
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    rank = strategy.cluster.rank
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    original = TorchTrainer.make_train_function
    TorchTrainer._initialize_ddp = initialize_ddp
    TorchTrainer.get_metrics_result = get_metrics_result
    TorchTrainer.make_train_function = make_train_function
    keras.__version__ = version
    # As at the start of a worker, which has found the present Keras.
    keep_keras_from_exchanging.__wrapped__()

    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.layers.Input((1,)), layer], name="ours")
        model.compile(keras.optimizers.SGD(0.1), "mse")
    y = np.float32([1, 1, 1, 3])[:, None]
    history = model.fit(np.ones((4, 1)), y, batch_size=4, epochs=1, verbose=0)
    strategy.backend.barrier()
    torch.distributed.destroy_process_group()
    return {
        "had default group": had_default_group,
        "done": sorted(set(done)),
        "loss": history.history["loss"],
        "kernel": float(model.get_weights()[0].ravel()[0]),
    }


def trained(folder, version):
    env = {"TRIREME_COLLECTIVES": "runtime", "GLOO_SOCKET_IFNAME": "lo"}
    return run_workers(keras_316_before_a_default_group, 2, str(folder), version, backend="torch", env=env)


def test_keras_316_does_not_exchange_what_is_exchanged_already(tmp_path):
    expected = {
        "had default group": False,
        "done": [],
        "loss": [pytest.approx(3.0)],
        "kernel": pytest.approx(0.3),
    }
    assert trained(tmp_path, "3.16.0") == [expected, expected]


def test_the_imitated_keras_would_exchange(tmp_path):
    for worker in trained(tmp_path, "3.15.9"):
        assert worker["done"] == ["gradients", "metrics"]


def told(call):
    """Returns what `call()` raises, as text."""
    try:
        return f"returned {call()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def runtime_alone(address, timeout_s):
    """Starts PyTorch's runtime by hand; returns a stand-in for the backend, and `(host, device)` collectives."""
    import os
    import types

    from trireme.backends.torch import runtime
    from trireme.cluster.cluster import Cluster
    from trireme.cluster.resolve import resolve

    os.environ.pop("TRIREME_SHARED_MEMORY_FD", None)
    cluster = Cluster((address, "127.0.0.1:0")) if address else resolve(os.environ)
    fd = os.environ.pop("TRIREME_PORT_FD", None)
    backend = types.SimpleNamespace(
        cluster=cluster,
        timeout_s=timeout_s,
        release_port=lambda: None if fd is None else os.close(int(fd)),
        waits=[],
    )
    backend.report_waiting = backend.waits.append
    return backend, runtime.connect(backend)


def nobody_to_meet():
    import socket

    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    return [
        told(lambda: runtime_alone("127.0.0.1:0", 1.0)),
        told(lambda: runtime_alone(f"127.0.0.1:{port}", 1.0)),
    ]


def test_workers_that_cannot_meet():
    [[without_port, alone]] = run_workers(nobody_to_meet, 1, backend=None, env={"KERAS_BACKEND": "torch"})
    assert without_port.startswith("ConfigurationError: Worker 0 of Cluster(")
    assert "has no port" in without_port and "trireme run" in without_port
    assert alone.startswith("PeerTimeout: Worker 0 could not connect to the other workers of Cluster(")
    assert "within 1 s" in alone


def late_and_gone():
    import datetime

    import numpy as np
    import torch

    def meet_elsewhere():
        total = torch.zeros(1)
        device.finish(device.start_sum([torch.ones(1)], total, 1.0))
        return total.item()

    backend, (host, device) = runtime_alone(None, 60.0)
    result = {}
    if backend.cluster.rank == 0:
        backend.timeout_s = 1.0
        host._group.set_timeout(datetime.timedelta(seconds=1))
        backend.waits.clear()
        result["late"] = told(lambda: host.all_reduce(np.ones(1)))
        result["waits"] = backend.waits[:1]
    result["others"] = meet_elsewhere()
    if backend.cluster.rank == 0:
        # Worker 1 ends here.
        result["gone"] = told(meet_elsewhere)
    return result


def test_a_worker_that_is_late_or_gone_is_told_about():
    first, second = run_workers(late_and_gone, 2, backend=None, env={"KERAS_BACKEND": "torch"})
    assert first["late"].startswith(
        "PeerTimeout: Worker 0 waited 1 s in a collective for one of the 1 others."
    )
    assert "--timeout" in first["late"]
    assert first["waits"] == [True]
    assert first["others"] == second["others"] == 2.0
    assert first["gone"].startswith("PeerLost: Worker 0 of 2 lost another worker during a collective.")
