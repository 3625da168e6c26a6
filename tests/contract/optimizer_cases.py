"""Every optimizer that Keras brings, schedules and half precision, with the numbers of one device; see `cases.py`."""

import functools

from tests.contract.cases import CASES, case, mlp, numbers_of, rows


def _optimizer(name, options, strategy):
    import keras

    x, y = rows(19)
    options = {"learning_rate": 0.02, **options}
    # Compiling takes far longer than these five steps; JAX compiles each operation by itself when it is eager.
    is_eager = keras.backend.backend() != "jax"
    model = mlp(strategy, getattr(keras.optimizers, name)(**options), metrics=[], run_eagerly=is_eager)
    return numbers_of(model, model.fit(x, y, batch_size=8, shuffle=False, epochs=2, verbose=0))


OPTIMIZERS = {
    "Adadelta": {"weight_decay": 0.1},
    "Adafactor": {},
    "Adagrad": {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3},
    "Adamax": {},
    "AdamW": {"weight_decay": 0.1},
    "Ftrl": {},
    "Lamb": {},
    "Lion": {"learning_rate": 0.005},
    "Muon": {},
    "Nadam": {"clipnorm": 0.3},
    "RMSprop": {"centered": True, "momentum": 0.5},
    "ScheduleFreeAdamW": {},
}
for _name, _options in OPTIMIZERS.items():
    CASES[f"optimizer_{_name}"] = functools.partial(_optimizer, _name, _options)


@case
def schedule_and_weight_decay(strategy):
    import keras

    x, y = rows(24)
    schedule = keras.optimizers.schedules.CosineDecay(0.1, decay_steps=5, warmup_target=0.2, warmup_steps=2)
    model = mlp(strategy, keras.optimizers.SGD(schedule, momentum=0.9, weight_decay=0.05))
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return {**numbers_of(model, history), "rate": model.optimizer.learning_rate}


def _half_line(strategy, dtype, optimizer):
    """`Dense(1)` without bias in half precision, with numbers that it holds exactly."""
    import keras

    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", dtype=dtype)
        model = keras.Sequential([keras.layers.Input((1,)), layer])
        model.compile(optimizer, "mse")
    return model


@case
def bfloat16_by_hand(strategy):
    import keras
    import numpy as np

    model = _half_line(strategy, "mixed_bfloat16", keras.optimizers.SGD(0.25))
    y = np.repeat(np.float32([8, 16]), 4)[:, None]
    history = model.fit(np.ones((8, 1)), y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return numbers_of(model, history)


@case
def overflow_on_one_replica(strategy):
    """One row overflows in the third step: no replica makes that step, and the scale halves on all of them."""
    import keras
    import numpy as np

    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.125), initial_scale=64.0, dynamic_growth_steps=2
    )
    model = _half_line(strategy, "mixed_float16", optimizer)
    x, y = np.ones((40, 1), "float32"), np.ones((40, 1), "float32")
    x[23] = 32768
    seen = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(
            [float(optimizer.dynamic_scale.numpy()), int(optimizer.iterations.numpy())]
        )
    )
    # JAX keeps the optimizer's variables to itself during an epoch.
    callbacks = [] if keras.backend.backend() == "jax" else [callback]
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)
    return {
        **numbers_of(model),
        "seen": seen,
        "scale": optimizer.dynamic_scale,
        "steps": optimizer.iterations,
    }


@case
def overflow_while_accumulating(strategy):
    import keras
    import numpy as np

    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.125, gradient_accumulation_steps=2), initial_scale=64.0
    )
    model = _half_line(strategy, "mixed_float16", optimizer)
    x, y = np.ones((40, 1), "float32"), np.ones((40, 1), "float32")
    x[23] = 32768
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return {**numbers_of(model), "scale": optimizer.dynamic_scale, "steps": optimizer.iterations}
