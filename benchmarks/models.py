"""The models that are timed, and their data: everything about them that is the same for all contestants."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

_NUM_WORDS = 1_000_000


@dataclass(frozen=True)
class Workload:
    """A model and how it is timed.

    Attributes:
        build: makes the compiled model.
        make_rows: makes `(x, y)` of so many rows.
        global_batch: rows of one step, over all replicas together.
        num_steps: steps of one block, the unit that is timed.
        num_rounds: how often every contestant has its turn.
        limit_s: seconds after which no further round begins, if there have been three: on a machine that is busy with
            something else all takes longer.
    """

    build: Callable[[], Any]
    make_rows: Callable[[int], tuple[np.ndarray, np.ndarray]]
    global_batch: int
    num_steps: int
    num_rounds: int
    limit_s: float


def _resnet(widths: Sequence[int] = (32, 64, 128), num_blocks: int = 2) -> Any:
    """A residual net for 32x32 images: three stages of two blocks, about 0.7 million parameters."""
    import keras
    from keras import layers

    def convolution(x: Any, filters: int, stride: int = 1, size: int = 3) -> Any:
        x = layers.Conv2D(filters, size, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolution(inputs, widths[0]))
    for filters in widths:
        for block in range(num_blocks):
            stride = 2 if block == 0 and filters != widths[0] else 1
            shortcut = x if x.shape[-1] == filters else convolution(x, filters, stride, size=1)
            branch = layers.ReLU()(convolution(x, filters, stride))
            x = layers.ReLU()(layers.Add()([convolution(branch, filters), shortcut]))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _mlp() -> Any:
    """Three dense layers, about 0.27 million parameters: a step so short that overhead shows."""
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _embedding(num_words: int = _NUM_WORDS) -> Any:
    """A table of a million rows, of which a step touches at most 2048.

    Trained by SGD: Keras' Adam makes a sparse gradient dense by itself, also without any strategy.
    """
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((8,), dtype="int32"),
            layers.Embedding(num_words, 64),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def _images(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    images = generator.standard_normal((num_rows, 32, 32, 3), np.float32)
    return images, generator.integers(0, 10, num_rows).astype(np.int32)


def _vectors(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    vectors = generator.standard_normal((num_rows, 784), np.float32)
    return vectors, generator.integers(0, 10, num_rows).astype(np.int32)


def _word_numbers(num_rows: int, num_words: int = _NUM_WORDS) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    words = generator.integers(0, num_words, (num_rows, 8)).astype(np.int32)
    return words, generator.standard_normal((num_rows, 1), np.float32)


def workloads(backend: str, is_quick: bool) -> dict[str, Workload]:
    """What is timed, by name.

    Args:
        backend: Keras backend. JAX's gradient of a table is dense, so its steps on the table are few.
        is_quick: whether only to see that everything runs: smaller models, few short blocks.
    """
    table_steps = 4 if backend == "jax" else 100
    if is_quick:
        return {
            "resnet": Workload(partial(_resnet, (8,), 1), _images, 64, 2, 2, 60),
            "mlp": Workload(_mlp, _vectors, 64, 20, 2, 60),
            "embedding": Workload(
                partial(_embedding, 1000), partial(_word_numbers, num_words=1000), 256, 4, 2, 60
            ),
        }
    return {
        "mlp": Workload(_mlp, _vectors, 64, 400, 21, 80),
        "resnet": Workload(_resnet, _images, 64, 4, 15, 120),
        "embedding": Workload(_embedding, _word_numbers, 256, table_steps, 15, 50),
    }
