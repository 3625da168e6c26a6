"""A script for what starts processes: trains a small model and leaves its weights. `small_training.py FOLDER`."""

import pathlib
import sys

import keras
import numpy as np

import trireme

folder = pathlib.Path(sys.argv[1])
keras.utils.set_random_seed(1)
random = np.random.default_rng(1)
x = random.normal(size=(96, 8)).astype("float32")
y = x[:, :2] @ np.array([[1.0], [-2.0]], "float32")

strategy = trireme.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
history = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history
print(f"{strategy.num_replicas_in_sync} replicas, loss {history['loss'][-1]:.6f}", flush=True)
if trireme.is_chief():
    np.savez(folder / f"{strategy.num_replicas_in_sync}.npz", *model.get_weights())
