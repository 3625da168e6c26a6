"""Embedding layers whose table is on the servers only. Workers take the rows of their batch, and push their gradients.

Such a layer has one variable on a worker, its *anchor*: a scalar that is always zero. The rows that a call looks up
depend on it, so that the backward pass comes by, and its gradient is what makes the optimizer's step wait until
the gradients of the rows are handed over.
"""

import functools

import keras

from trireme.errors import UsageError

_ANCHOR = "_trireme_anchor"


def is_remote(layer):
    """Whether the table of an embedding layer is on the servers only."""
    return _ANCHOR in vars(layer)


def is_anchor(variable):
    return variable.name == _ANCHOR


def remote_embeddings(model):
    """The layers of `model` whose tables are on the servers only, each once."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    return [layer for layer in dict.fromkeys(layers) if is_remote(layer)]


@functools.cache
def install(strategy_in_scope):
    """Makes embedding layers ask, when they are built, whether a strategy in scope keeps their table.

    Args:
        strategy_in_scope: function that returns the strategy in whose scope this is, or None.
    """
    original = keras.layers.Embedding.build

    @functools.wraps(original)
    def build(self, input_shape=None):
        strategy = strategy_in_scope()
        if self.built or strategy is None or not strategy.is_asynchronous or not strategy.keeps_table(self):
            return original(self, input_shape)
        _make_remote(self, strategy)

    keras.layers.Embedding.build = build


def _make_remote(layer, strategy):
    for option in ("embeddings_regularizer", "embeddings_constraint", "lora_rank", "quantization_mode"):
        if getattr(layer, option, None):
            raise UsageError(
                f"{layer.name} has {option}={getattr(layer, option)!r}, which concerns its whole table, but the table "
                "is on the parameter servers only. Leave it out, or raise min_table_bytes of ParameterServerStrategy."
            )
    anchor = layer.add_weight(shape=(), initializer="zeros", name=_ANCHOR, trainable=True)
    object.__setattr__(layer, _ANCHOR, anchor)
    layer.built = True

    def call(inputs):
        if inputs.dtype not in ("int32", "int64"):
            inputs = keras.ops.cast(inputs, "int32")
        rows = strategy.side.look_up(strategy, layer, inputs, anchor.value)
        return keras.ops.cast(rows, layer.compute_dtype)

    def save_own_variables(store):
        store["0"] = strategy.exchange.read_table(layer)

    def load_own_variables(store):
        raise UsageError(
            f"The table of {layer.name} is on the parameter servers, which make it by its initializer: it cannot be "
            "loaded. Raise min_table_bytes of ParameterServerStrategy, so that workers hold the table."
        )

    for method in (call, save_own_variables, load_own_variables):
        object.__setattr__(layer, method.__name__, method)
