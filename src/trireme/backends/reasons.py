"""What in a model is likely to give several replicas other numbers than one device."""

import keras

from trireme.backends.adoption import syncs_batch_norm

HALF = ("float16", "bfloat16")


def is_half_precision(model):
    """Whether some layer of `model` computes in 16 bits."""
    return any(getattr(layer, "compute_dtype", None) in HALF for layer in model._flatten_layers())


def likely_reasons(model, strategy, differing):
    """Returns sentences, the likeliest first.

    Args:
        model: an adopted model.
        strategy: its strategy.
        differing: the kinds of numbers that differ: "loss", "gradients", "weights", "metrics".
    """
    reasons = []
    layers = list(model._flatten_layers())
    if not strategy.backend.sees_global_batch:
        reasons += _random_layers(layers)
        if not syncs_batch_norm(model):
            reasons += _batch_norm(layers)
    if differing == {"metrics"}:
        return [*reasons, "Only metrics differ: a metric's state is no sum over the rows."]
    reasons += _own_methods(model) + _own_losses(model)
    return reasons or [
        "A layer or a loss compares rows with each other (a contrastive loss, statistics of the batch), gives add_loss "
        "a sum over the rows, or draws random numbers without a keras.random.SeedGenerator."
    ]


def _random_layers(layers):
    names = [
        layer.name
        for layer in layers
        if any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())
    ]
    if not names:
        return []
    return [
        f"Random layers ({_listed(names)}): each replica draws for its own rows, one device for all of them. Verify "
        "again with their rates at 0 to see the rest."
    ]


def _batch_norm(layers):
    names = [
        layer.name
        for layer in layers
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable and not layer.synchronized
    ]
    if not names:
        return []
    return [
        f"Batch normalization ({_listed(names)}) takes the statistics of each replica's own rows: make the strategy "
        "with sync_batch_norm=True."
    ]


def _own_methods(model):
    names = [
        name
        for name in ("train_step", "compute_loss", "compute_metrics")
        if getattr(type(model), name) is not getattr(keras.Model, name)
    ]
    if not names:
        return []
    return [
        f"{type(model).__name__} has a {' and a '.join(names)} of its own: a loss must be a mean over the rows it is "
        "given. A sum, or a division by a fixed batch size, is that of the replica's rows only."
    ]


def _own_losses(model):
    losses = keras.tree.flatten(getattr(getattr(model, "_compile_loss", None), "_user_loss", None))
    names = [
        getattr(loss, "__name__", type(loss).__name__)
        for loss in losses
        if callable(loss) and not (getattr(loss, "__module__", None) or "").startswith("keras.")
    ]
    if not names:
        return []
    return [
        f"The loss {_listed(names)} is the user's own: it must give a value for each row, or the mean over the rows "
        "that it is given. A sum, or a division by a fixed batch size, is that of the replica's rows only."
    ]


def _listed(names):
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
