"""A script for one server and two workers; before epoch 1 the chief waits for a sign: `servers_in_pods.py FOLDER`."""

import json
import pathlib
import sys
import time

import keras
import numpy as np

import trireme

folder = pathlib.Path(sys.argv[1])
strategy = trireme.ParameterServerStrategy()
x = np.random.default_rng(0).normal(size=(320, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
count = keras.metrics.MeanMetricWrapper(lambda y_true, y_pred: keras.ops.ones_like(y_true[:, 0]), name="ones")
rows = []


class Epochs(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and trireme.is_chief():
            print("epoch 1 begins", flush=True)
            while not (folder / "go-on").exists():
                time.sleep(0.02)

    def on_epoch_end(self, epoch, logs=None):
        rows.append(float(keras.ops.convert_to_numpy(count.count)))


with strategy.scope():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.02), "mse", metrics=[count])
losses = model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=[Epochs()]).history["loss"]
if trireme.is_chief():
    result = {"rows": rows, "losses": losses, "weights": model.get_weights()[0].ravel().tolist()}
    (folder / "result.json").write_text(json.dumps(result))
    print(f"loss {losses[-1]:.2e}", flush=True)
