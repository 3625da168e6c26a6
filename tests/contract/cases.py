"""Trainings whose numbers must not depend on how many replicas share the work.

Every case takes the strategy and returns a flat dict of numbers; the same code runs on plain Keras (a strategy of one
replica leaves Keras as it is) and on several replicas. `test_exactness.py` compares.
"""

import functools

from tests.contract.custom_steps import make_model_class

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def to_host(value):
    import keras
    import numpy as np

    return np.asarray(
        keras.ops.convert_to_numpy(value) if not isinstance(value, (str, list, bool)) else value
    )


def numbers_of(model, history=None):
    """Returns the weights of a model and the values of a history by name."""
    numbers = {f"weight {index}": weight for index, weight in enumerate(model.get_weights())}
    if history is not None:
        numbers.update({f"history {name}": values for name, values in history.history.items()})
    return numbers


def rows(num_rows, num_features=4, seed=0):
    """Returns `x` and `y` of a small regression."""
    import numpy as np

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, num_features)).astype("float32")
    y = (x @ rng.normal(size=(num_features, 1)) + 0.3 * x[:, :1] * x[:, 1:2]).astype("float32")
    return x, y


def mlp(
    strategy,
    optimizer="sgd",
    loss="mse",
    metrics=("mae",),
    num_features=4,
    activation=None,
    **compile_options,
):
    """Returns a small compiled network made in the strategy's scope."""
    import keras

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((num_features,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dense(1, activation=activation),
            ]
        )
        model.compile(optimizer, loss, metrics=list(metrics), **compile_options)
    return model


def line(strategy, loss="mse", learning_rate=0.1, kernel="zeros", regularizer=None, **optimizer_options):
    """Returns `Dense(1)` without bias, whose training can be followed by hand."""
    import keras

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((1,)),
                keras.layers.Dense(
                    1, use_bias=False, kernel_initializer=kernel, kernel_regularizer=regularizer
                ),
            ]
        )
        model.compile(keras.optimizers.SGD(learning_rate, **optimizer_options), loss)
    return model


def kernel_and_loss(model, history):
    return {"kernel": model.get_weights()[-1].ravel()[0], "loss": history.history["loss"][0]}


# What can be checked by hand.


@case
def last_batch_of_3_by_hand(strategy):
    import numpy as np

    x, y = np.ones((19, 1), "float32"), np.zeros((19, 1), "float32")
    y[-1] = 30
    model = line(strategy)
    return kernel_and_loss(model, model.fit(x, y, batch_size=8, shuffle=False, verbose=0))


@case
def last_batch_of_1_by_hand(strategy):
    import numpy as np

    x, y = np.ones((17, 1), "float32"), np.zeros((17, 1), "float32")
    y[-1] = 30
    model = line(strategy)
    return kernel_and_loss(model, model.fit(x, y, batch_size=8, shuffle=False, verbose=0))


def _weighted(reduction, strategy):
    import keras
    import numpy as np

    x = np.ones((8, 1), "float32")
    y = np.repeat(np.float32([10, 20]), 4)[:, None]
    weights = np.repeat(np.float32([1, 0]), 4)
    model = line(strategy, keras.losses.MeanSquaredError(reduction=reduction))
    return kernel_and_loss(
        model, model.fit(x, y, sample_weight=weights, batch_size=8, shuffle=False, verbose=0)
    )


for _reduction in ("sum_over_batch_size", "mean_with_sample_weight", "sum"):
    CASES[f"weights_under_{_reduction}_by_hand"] = functools.partial(_weighted, _reduction)


@case
def uneven_mask_by_hand(strategy):
    import keras
    import numpy as np

    ids = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]])
    y = np.zeros((4, 4, 1), "float32")
    y[2, 0] = y[3, 0] = 10
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((4,)),
                keras.layers.Embedding(2, 1, mask_zero=True, embeddings_initializer="ones", trainable=False),
                keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return kernel_and_loss(model, model.fit(ids, y, batch_size=4, shuffle=False, verbose=0))


@case
def clip_after_the_mean_by_hand(strategy):
    import numpy as np

    x, y = np.ones((2, 1), "float32"), np.float32([[50], [-49]])
    model = line(strategy, learning_rate=1.0, global_clipnorm=1.0)
    return kernel_and_loss(model, model.fit(x, y, batch_size=2, shuffle=False, verbose=0))


@case
def l2_by_hand(strategy):
    import keras
    import numpy as np

    x = np.ones((4, 1), "float32")
    model = line(strategy, kernel="ones", regularizer=keras.regularizers.L2(0.5))
    return kernel_and_loss(model, model.fit(x, x, batch_size=4, verbose=0))


# Optimizers, losses, weights.


def _optimizer(name, options, strategy):
    import keras

    x, y = rows(61)
    model = mlp(strategy, keras.optimizers.get({"class_name": name, "config": options}))
    return numbers_of(model, model.fit(x, y, batch_size=16, epochs=3, verbose=0))


for _name, _options in {
    "momentum": ("SGD", {"learning_rate": 0.05, "momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", {"learning_rate": 0.01}),
    "clipnorm": ("SGD", {"learning_rate": 0.05, "clipnorm": 0.2}),
    "global_clipnorm": ("Adam", {"learning_rate": 0.01, "global_clipnorm": 0.3}),
    "clipvalue": ("SGD", {"learning_rate": 0.05, "clipvalue": 0.1}),
    "ema": ("SGD", {"learning_rate": 0.05, "use_ema": True, "ema_momentum": 0.8}),
}.items():
    CASES[_name] = functools.partial(_optimizer, *_options)


@case
def regularizer_and_added_loss(strategy):
    import keras

    class MeanOfSquares(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
            return inputs

    x, y = rows(43)
    with strategy.scope():
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(6, "tanh", kernel_regularizer="l2", activity_regularizer="l1")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(MeanOfSquares()(hidden)))
        model.compile(keras.optimizers.SGD(0.05), "mse")
    return numbers_of(model, model.fit(x, y, batch_size=16, epochs=2, verbose=0))


def _reduction_with_weights(reduction, strategy):
    import keras
    import numpy as np

    x, y = rows(45)
    weights = np.random.default_rng(3).random(45).astype("float32") * (np.arange(45) % 3 > 0)
    model = mlp(strategy, keras.optimizers.SGD(0.01), keras.losses.MeanAbsoluteError(reduction=reduction))
    return numbers_of(model, model.fit(x, y, batch_size=16, epochs=2, sample_weight=weights, verbose=0))


for _reduction in ("sum_over_batch_size", "mean_with_sample_weight", "sum"):
    CASES[f"weights_under_{_reduction}"] = functools.partial(_reduction_with_weights, _reduction)


@case
def masked_sequences(strategy):
    import keras
    import numpy as np

    rng = np.random.default_rng(1)
    lengths = np.sort(rng.integers(1, 9, size=42))
    ids = np.where(np.arange(8) < lengths[:, None], rng.integers(1, 20, size=(42, 8)), 0)
    targets = (ids % 3).astype("int32")
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((8,)),
                keras.layers.Embedding(20, 4, mask_zero=True),
                keras.layers.LSTM(5, return_sequences=True),
                keras.layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return numbers_of(model, model.fit(ids, targets, batch_size=16, epochs=2, shuffle=False, verbose=0))


@case
def class_weight(strategy):
    x, y = rows(50)
    labels = (y > 0).astype("float32")
    model = mlp(strategy, loss="binary_crossentropy", activation="sigmoid", metrics=["accuracy"])
    history = model.fit(x, labels, batch_size=16, epochs=2, class_weight={0: 0.3, 1: 2.0}, verbose=0)
    return numbers_of(model, history)


@case
def several_inputs_outputs_and_losses(strategy):
    import keras
    import numpy as np

    rng = np.random.default_rng(0)
    ids = rng.integers(0, 30, size=(50, 3))
    dense = rng.normal(size=(50, 4)).astype("float32")
    targets = {"a": dense[:, :1] * 2, "b": (ids.sum(1, keepdims=True) % 2).astype("float32")}
    with strategy.scope():
        inputs = {"ids": keras.Input((3,), dtype="int32"), "dense": keras.Input((4,))}
        embedded = keras.layers.Flatten()(keras.layers.Embedding(30, 4)(inputs["ids"]))
        hidden = keras.layers.Dense(8, "tanh")(keras.layers.Concatenate()([embedded, inputs["dense"]]))
        outputs = {
            "a": keras.layers.Dense(1, name="a")(hidden),
            "b": keras.layers.Dense(1, activation="sigmoid", name="b")(hidden),
        }
        model = keras.Model(inputs, outputs)
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.5),
            {"a": "mse", "b": "binary_crossentropy"},
            loss_weights={"a": 0.5, "b": 2.0},
            metrics={"a": ["mae"], "b": ["accuracy"]},
        )
    history = model.fit({"ids": ids, "dense": dense}, targets, batch_size=16, epochs=2, verbose=0)
    return numbers_of(model, history)


# Metrics, evaluation, prediction.


@case
def evaluate_counts_each_row_once(strategy):
    import keras

    class RowCounter(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="rows")
            self.count = self.add_variable((), "zeros", name="count")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.count.assign_add(keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

        def result(self):
            return keras.ops.convert_to_tensor(self.count)

    x, y = rows(1000)
    labels = (y > 0).astype("float32")
    metrics = ["accuracy", "auc", keras.metrics.TruePositives(name="tp"), RowCounter()]
    model = mlp(strategy, loss="binary_crossentropy", activation="sigmoid", metrics=metrics)
    inside = []
    callback = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: inside.append(model.evaluate(x, labels, batch_size=128, verbose=0))
    )
    alone = model.evaluate(x, labels, batch_size=128, verbose=0, return_dict=True)
    held_by_metrics = {
        f"held {metric.name}": metric.result() for metric in model.metrics if metric.name == "loss"
    }
    history = model.fit(
        x, labels, batch_size=128, epochs=2, verbose=0, validation_data=(x, labels), callbacks=[callback]
    )
    numbers = numbers_of(model, history)
    if keras.backend.backend() == "torch":
        # Plain Keras logs the validation's value here: the metric's result shares its variable's memory.
        del numbers["history tp"], numbers["history rows"]
    return {**alone, **held_by_metrics, "inside a callback": inside, **numbers}


@case
def predict_in_order(strategy):
    x, y = rows(10)
    model = mlp(strategy)
    return {
        "predict": model.predict(x, batch_size=4, verbose=0),
        "fewer rows than replicas": model.predict(x[:1], verbose=0),
        "on a batch": model.predict_on_batch(x),
        "again after training": (model.fit(x, y, verbose=0), model.predict(x, batch_size=3, verbose=0))[1],
    }


@case
def batches_one_by_one(strategy):
    x, y = rows(37)
    model = mlp(strategy, "adam")
    logs = [model.train_on_batch(x[start : start + 5], y[start : start + 5]) for start in range(0, 37, 5)]
    logs.append(model.train_on_batch(x[:1], y[:1]))
    tested = model.test_on_batch(x, y, return_dict=True)
    return {"train": logs, **tested, **numbers_of(model)}


@case
def metric_of_a_plain_function(strategy):
    import keras

    def largest_error(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred))

    x, y = rows(35)
    model = mlp(strategy, metrics=[largest_error])
    return numbers_of(model, model.fit(x, y, batch_size=8, epochs=2, verbose=0))


@case
def batch_norm_and_dropout(strategy):
    """Equal to one device only where a step sees the whole batch."""
    import keras

    x, y = rows(64)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((4,)),
                keras.layers.Dense(8),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05), "mse")
    return numbers_of(model, model.fit(x, y, batch_size=12, epochs=2, validation_data=(x, y), verbose=0))


# Arguments of fit.


@case
def validation_split(strategy):
    x, y = rows(60)
    model = mlp(strategy)
    return numbers_of(model, model.fit(x, y, batch_size=9, epochs=2, validation_split=0.25, verbose=0))


@case
def steps_per_epoch_and_execution(strategy):
    import keras

    x, y = rows(64)
    # Keras' PyTorch trainer knows one step per execution only.
    model = mlp(strategy, steps_per_execution=1 if keras.backend.backend() == "torch" else 3)
    first = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    second = model.fit(x, y, batch_size=8, epochs=2, steps_per_epoch=4, validation_data=(x, y), verbose=0)
    return {
        **numbers_of(model, second),
        "first": first.history["loss"],
        "predict": model.predict(x, verbose=0),
    }


@case
def unshuffled_and_batch_shuffled(strategy):
    x, y = rows(40)
    model = mlp(strategy)
    first = model.fit(x, y, batch_size=12, shuffle=False, verbose=0)
    second = model.fit(x, y, batch_size=12, shuffle="batch", epochs=2, verbose=0)
    return {**numbers_of(model, second), "first": first.history["loss"]}


@case
def batch_size_below_replicas(strategy):
    x, y = rows(5)
    model = mlp(strategy)
    return numbers_of(model, model.fit(x, y, batch_size=1, epochs=2, verbose=0))


@case
def tf_data(strategy):
    import tensorflow as tf

    x, y = rows(50)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50, seed=3).batch(16)
    held_out = tf.data.Dataset.from_tensor_slices(rows(21, seed=1)).batch(8)
    model = mlp(strategy, "adam")
    history = model.fit(dataset, epochs=2, validation_data=held_out, verbose=0)
    endless = model.fit(dataset.repeat(), epochs=1, steps_per_epoch=5, verbose=0)
    return {
        **numbers_of(model, history),
        "endless": endless.history["loss"],
        "evaluate": model.evaluate(held_out, verbose=0),
        "predict": model.predict(held_out.map(lambda x, y: x), verbose=0),
    }


@case
def tf_data_shuffled_without_a_seed(strategy):
    import tensorflow as tf

    x, y = rows(32)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(32).batch(8)
    model = mlp(strategy)
    # Which order it is may differ from run to run; that each row comes once, and the workers agree, may not.
    model.fit(dataset, epochs=2, verbose=0)
    return {"evaluate": 0.0}


# The life of a model.


@case
def made_outside_of_the_scope(strategy):
    import keras

    x, y = rows(30)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    with strategy.scope():
        model.compile("sgd", "mse")
    return numbers_of(model, model.fit(x, y, batch_size=8, epochs=2, verbose=0))


@case
def compiled_outside_of_the_scope(strategy):
    import keras

    x, y = rows(30)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return numbers_of(model, model.fit(x, y, batch_size=8, epochs=2, verbose=0))


@case
def trained_before_it_was_adopted(strategy):
    import keras

    x, y = rows(30)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    with strategy.scope():
        model.compile("sgd", "mse")
    return numbers_of(model, model.fit(x, y, batch_size=8, epochs=2, verbose=0))


@case
def second_fit_and_recompile(strategy):
    import keras

    x, y = rows(30)
    model = mlp(strategy, "adam")
    model.fit(x, y, batch_size=8, verbose=0)
    second = model.fit(x, y, batch_size=8, epochs=3, initial_epoch=1, verbose=0)
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mae")
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return numbers_of(model, second)


@case
def saved_loaded_and_cloned(strategy):
    import os
    import tempfile

    import keras
    import numpy as np

    x, y = rows(30)
    model = mlp(strategy, "adam")
    model.fit(x, y, batch_size=8, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        model.save_weights(os.path.join(folder, "model.weights.h5"))
        assert sorted(os.listdir(folder)) == ["model.keras", "model.weights.h5"]
        plain = keras.models.load_model(path)
        with strategy.scope():
            again = keras.models.load_model(path)
            clone = keras.models.clone_model(model)
        clone.load_weights(os.path.join(folder, "model.weights.h5"))
    clone.compile("sgd", "mse")
    if strategy.num_replicas_in_sync > 1:
        # A run of one replica is followed as a whole, so that it can be backed up.
        assert "fit" not in vars(plain), "a model loaded outside of a scope must be plain Keras"
    model.summary(print_fn=lambda text: None)
    return {
        "same predictions": np.array([m.predict(x, verbose=0) for m in (model, plain, again, clone)]),
        **numbers_of(again, again.fit(x, y, batch_size=8, epochs=2, verbose=0)),
        "clone": clone.fit(x, y, batch_size=8, verbose=0).history["loss"],
    }


@case
def step_written_by_the_user(strategy):
    import keras

    x, y = rows(45)
    with strategy.scope():
        model = make_model_class()(
            [keras.layers.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
    return numbers_of(model, model.fit(x, y, batch_size=16, epochs=2, verbose=0))


@case
def run_eagerly(strategy):
    x, y = rows(29)
    model = mlp(strategy, "adam", run_eagerly=True)
    history = model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), verbose=0)
    return {**numbers_of(model, history), "predict": model.predict(x, batch_size=8, verbose=0)}


# Decisions.


@case
def early_stopping_and_plateau(strategy):
    import keras

    x, y = rows(60)
    model = mlp(strategy, keras.optimizers.SGD(0.5))
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, factor=0.5),
    ]
    history = model.fit(
        x, y, batch_size=16, epochs=25, validation_data=rows(20, seed=4), callbacks=callbacks, verbose=0
    )
    return {**numbers_of(model, history), "epochs": len(history.epoch)}


@case
def stopped_in_the_middle_of_an_epoch(strategy):
    import keras

    x, y = rows(64)
    model = mlp(strategy)
    seen = []

    class StopAtStep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(logs["loss"])
            if batch == 4:
                self.model.stop_training = True

    history = model.fit(x, y, batch_size=8, epochs=2, callbacks=[StopAtStep()], verbose=0)
    return {**numbers_of(model, history), "losses of batches": seen, "iterations": model.optimizer.iterations}
