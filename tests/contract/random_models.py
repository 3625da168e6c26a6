"""Small trainings described by a dict, for the property tests and for the counter-examples they have found."""


def train_both(strategy, recipe):
    """Returns `(numbers of plain Keras, numbers under a strategy)` of the training that `recipe` describes."""
    import trireme

    synchronised = trireme.MirroredStrategy(sync_batch_norm=True)
    return _train(trireme.OneDeviceStrategy(), recipe), _train(synchronised, recipe)


def _train(strategy, recipe):
    import keras
    import numpy as np

    keras.utils.set_random_seed(recipe["seed"])
    rng = np.random.default_rng(recipe["seed"])
    with strategy.scope():
        model = _sequence_model(recipe) if recipe["is_sequence"] else _dense_model(recipe)
        loss = keras.losses.get({"class_name": recipe["loss"], "config": {"reduction": recipe["reduction"]}})
        # Eager steps are made faster than compiled; JAX compiles every operation by itself when it is eager.
        model.compile(
            _optimizer(recipe),
            loss,
            metrics=["mae"],
            weighted_metrics=[] if _keras_changes_the_weights(recipe) else ["mse"],
            run_eagerly=keras.backend.backend() != "jax",
        )
    x, y = _data(recipe, rng)
    weights = None
    if recipe["weights"]:
        # One of every entry of the loss: Keras gives no row's weight to its steps.
        shape = y.shape[:-1]
        weights = (rng.random(shape) * (rng.random(shape) > 0.4)).astype("float32")
    fitting = {"batch_size": recipe["batch_size"], "verbose": 0}
    history = model.fit(x, y, sample_weight=weights, epochs=2, validation_data=(x[:3], y[:3]), **fitting)
    numbers = {f"history {name}": np.array(values) for name, values in history.history.items()}
    numbers.update({f"weight {index}": weight for index, weight in enumerate(model.get_weights())})
    return {**numbers, "predict": model.predict(x, **fitting)}


def _keras_changes_the_weights(recipe):
    """Whether plain Keras multiplies the scaled mask into the weights in place, before a metric takes them."""
    import keras

    is_mean = recipe["reduction"] == "sum_over_batch_size"
    return keras.backend.backend() == "torch" and is_mean and recipe["mask"] and recipe["weights"]


def _dense_model(recipe):
    import keras

    layers = [keras.layers.Input((3,)), keras.layers.Dense(recipe["units"], "tanh")]
    if recipe["batch_norm"]:
        # The usual epsilon enlarges the rounding of a batch of one row, whose variance is nothing, thirtyfold.
        layers.append(keras.layers.BatchNormalization(momentum=0.5, epsilon=0.1))
    return keras.Sequential([*layers, keras.layers.Dense(1, kernel_regularizer=recipe["regularizer"])])


def _sequence_model(recipe):
    import keras

    return keras.Sequential(
        [
            keras.layers.Input((4,), dtype="int32"),
            keras.layers.Embedding(6, recipe["units"], mask_zero=recipe["mask"]),
            keras.layers.SimpleRNN(2, return_sequences=True),
            keras.layers.Dense(1),
        ]
    )


def _optimizer(recipe):
    import keras

    name = recipe["optimizer"]
    config = {
        "learning_rate": 0.05,
        "gradient_accumulation_steps": recipe["accumulation"],
        **recipe["clipping"],
    }
    # A small epsilon would divide the rounding of gradients near zero by itself.
    config.update({"momentum": 0.5} if name == "SGD" else {"epsilon": 1e-2})
    return keras.optimizers.get({"class_name": name, "config": config})


def _data(recipe, rng):
    import numpy as np

    num_rows = recipe["num_rows"]
    if not recipe["is_sequence"]:
        x = rng.normal(size=(num_rows, 3)).astype("float32")
        return x, (x[:, :1] - x[:, 1:2] * x[:, 2:]).astype("float32")
    ids = rng.integers(1, 6, size=(num_rows, 4))
    ids[np.arange(4) >= rng.integers(0, 5, size=(num_rows, 1))] = 0
    return ids, (ids[..., np.newaxis] % 3).astype("float32")
