"""A small model with what replicas have to exchange, for `trireme check`, which compares its first steps."""

import keras
import numpy as np

from trireme.strategies.mirrored import MirroredStrategy


def main() -> None:
    """Trains the model on rows that do not divide evenly."""
    strategy = MirroredStrategy(sync_batch_norm=True)
    rng = np.random.default_rng(0)
    ids, rows = rng.integers(0, 50, size=(48, 3)), rng.normal(size=(48, 6)).astype("float32")
    with strategy.scope():
        inputs = [keras.Input((3,), dtype="int32"), keras.Input((6,))]
        embedded = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(inputs[0]))
        hidden = keras.layers.Dense(8, use_bias=False)(keras.layers.Concatenate()([embedded, inputs[1]]))
        hidden = keras.layers.Activation("tanh")(keras.layers.BatchNormalization()(hidden))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0), "mse", metrics=["mae"])
    model.fit([ids, rows], rows.sum(axis=1, keepdims=True), batch_size=16, verbose=0)


if __name__ == "__main__":
    main()
