"""Virtual CPU devices of JAX must not starve each other of threads."""

import pytest

from trireme.testing import run_workers


def pool_size_after_training():
    import os

    import keras
    import numpy as np

    import trireme

    with trireme.MirroredStrategy().scope():
        model = keras.Sequential([keras.Input((512,)), keras.layers.Dense(256), keras.layers.Dense(10)])
        model.compile("sgd", "mse")
    # Many short steps: Python runs far ahead of the devices.
    model.fit(np.zeros((64 * 200, 512), "float32"), np.zeros((64 * 200, 10)), batch_size=64, verbose=0)
    return int(os.environ.get("NPROC") or os.cpu_count())


@pytest.mark.parametrize("told", [None, "2"])
def test_there_are_two_threads_for_each_device(told):
    env = {} if told is None else {"NPROC": told}
    [size] = run_workers(
        pool_size_after_training, 1, backend="jax", replicas_per_worker=3, env=env, timeout_s=200
    )
    assert size >= 6
