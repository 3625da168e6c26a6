"""The training that `soak.py` kills: dropout, batch statistics, metrics, validation and a deciding callback.

trireme run --strategy mirrored benchmarks/soak_training.py RESULT.json [EPOCHS]
"""

import json
import os
import pathlib
import sys

import keras
import numpy as np

ROWS, BATCH_SIZE = 4000, 40


def main() -> None:
    result, epochs = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 8
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 16)).astype("float32")
    y = (x[:, :4].sum(axis=1) > 0).astype("float32")
    model = keras.Sequential(
        [
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    history = model.fit(
        x,
        y,
        batch_size=BATCH_SIZE,
        epochs=epochs,
        validation_data=(x[:100], y[:100]),
        callbacks=[keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=0.05)],
        verbose=0,
    )
    if os.environ.get("TRIREME_RANK", "0") == "0":
        steps = epochs * -(-ROWS // BATCH_SIZE)
        weights = [weight.ravel().tolist() for weight in model.get_weights()]
        result.write_text(json.dumps({"history": history.history, "weights": weights, "steps": steps}))


if __name__ == "__main__":
    main()
