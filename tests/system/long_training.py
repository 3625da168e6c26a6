"""A script that takes long enough to be interrupted, whatever the machine: `long_training.py WEIGHTS_FILE`."""

import pathlib
import sys
import time

import keras
import numpy as np

import trireme

SLOW_STEP_S = 0.5

target = pathlib.Path(sys.argv[1])
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


class Interruptible(keras.callbacks.Callback):
    """The first time that epoch 2 begins, in a run of several processes, its steps are slow."""

    is_slow = False

    def on_epoch_begin(self, epoch, logs=None):
        print(f"epoch {epoch} begins", flush=True)
        if epoch == 2 and strategy.num_replicas_in_sync > 1:
            marker = target.with_suffix(".began")
            self.is_slow = not marker.exists()
            marker.touch()

    def on_train_batch_begin(self, batch, logs=None):
        if self.is_slow:
            time.sleep(SLOW_STEP_S)


model.fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=[Interruptible()])
if trireme.is_chief():
    np.savez(target, *model.get_weights())
