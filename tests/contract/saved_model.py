"""A training that goes on with another number of replicas, or another backend, from a file."""

import os
import tempfile

from tests.contract.cases import numbers_of, rows


def train_and_save(strategy):
    """Returns the bytes of a saved model, and the numbers that it has after its next epoch."""
    import keras
    import numpy as np

    x, y = rows(40)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((4,)),
                keras.layers.Dense(6, activation="tanh"),
                keras.layers.LayerNormalization(),
                keras.layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=1.0, gradient_accumulation_steps=2)
        model.compile(optimizer, "mse", metrics=["mae"])
    # Saved between two updates: what has been accumulated is part of the file.
    model.fit(x, y, batch_size=8, epochs=3, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        with open(path, "rb") as file:
            content = np.frombuffer(file.read(), np.uint8)
    return {"file": content, **_next_epoch(model)}


def load_and_train(strategy, content):
    """Returns the numbers that the saved model has after its next epoch under `strategy`."""
    import keras

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        with open(path, "wb") as file:
            file.write(content.tobytes())
        with strategy.scope():
            model = keras.models.load_model(path)
    return _next_epoch(model)


def _next_epoch(model):
    x, y = rows(24, seed=5)
    history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    slots = {f"slot {index}": variable for index, variable in enumerate(model.optimizer.variables)}
    return {**numbers_of(model, history), **slots}
