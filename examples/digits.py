"""Handwritten digits with a small convolutional net: a Keras script, and two lines for the strategy.

python examples/digits.py                          every device of this machine
KERAS_BACKEND=jax python examples/digits.py        the same in JAX
trireme run --replicas 2 examples/digits.py        two replicas
trireme run --replicas 2 examples/digits.py --epochs 20 --save /tmp/digits
"""

import argparse
import itertools
import json
import pathlib
import statistics
import time

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import trireme

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=64, help="rows of one step, over all replicas together")
parser.add_argument("--save", type=pathlib.Path, help="folder for the trained model and its results")
arguments = parser.parse_args()

keras.utils.set_random_seed(1)
digits = load_digits()
train_images, test_images, train_labels, test_labels = train_test_split(
    (digits.images[..., None] / 16).astype("float32"),
    digits.target,
    test_size=0.2,
    random_state=1,
    stratify=digits.target,
)
steps_per_epoch = -(-len(train_images) // arguments.batch_size)

strategy = trireme.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    learning_rate = keras.optimizers.schedules.CosineDecay(3e-3, arguments.epochs * steps_per_epoch)
    model.compile(
        keras.optimizers.Adam(learning_rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )

starts = []
clock = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: starts.append(time.perf_counter()))
model.fit(
    train_images,
    train_labels,
    batch_size=arguments.batch_size,
    epochs=arguments.epochs,
    callbacks=[clock],
)
starts.append(time.perf_counter())
epochs_s = [end - start for start, end in itertools.pairwise(starts)]
_, test_accuracy = model.evaluate(test_images, test_labels, batch_size=arguments.batch_size, verbose=0)

if trireme.is_chief():
    results = {
        "test_accuracy": test_accuracy,
        "num_train_images": len(train_images),
        # The first epoch compiles the step besides.
        "epoch_s": statistics.median(epochs_s[1:] or epochs_s),
    }
    print(f"test accuracy {test_accuracy:.4f}, {results['epoch_s']:.2f} s per epoch")
    if arguments.save:
        arguments.save.mkdir(parents=True, exist_ok=True)
        model.save(arguments.save / "digits.keras")
        (arguments.save / "results.json").write_text(json.dumps(results))
