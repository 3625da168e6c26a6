"""Creates a model's variables before its first step, from the shapes of a batch alone."""

import keras
from keras.src import backend as keras_backend
from keras.src import tree
from keras.src.trainers.data_adapters import data_adapter_utils


def build_model(model, batches, training):
    """Creates the variables of `model`, and with `training` those of its losses, metrics and optimizer.

    A model with a `train_step` of its own may have no call to build by; its variables are then those it has.

    Args:
        model: a `keras.Model`.
        batches: iterator of structures of anything with a shape and a dtype, as Keras' `fit` would get them.
            The first is taken only if something is left to build: taking it may draw a permutation, and
            plain Keras does so under the same condition.
        training: whether to build what `fit` and `evaluate` need beside the layers.
    """
    try:
        if training:
            model._symbolic_build(iterator=[(0, 0, batches)])
        elif not all(layer.built for layer in model._flatten_layers()):
            x, _, _ = data_adapter_utils.unpack_x_y_sample_weight(next(batches))
            keras_backend.compute_output_spec(model, tree.map_structure(_symbolic, x), training=False)
    except Exception:
        if type(model).train_step is keras.Model.train_step:
            raise


def build_by_symbols(model, symbols, training):
    """Does the same from `KerasTensor`s, for what Keras' own building would take for dense: ragged tensors."""
    x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(symbols)
    y_pred = keras_backend.compute_output_spec(model, x, training=False)
    if not training:
        return
    weighted = {"sample_weight": sample_weight}
    if model._compile_metrics is not None and not model._compile_metrics.built:
        keras_backend.compute_output_spec(model.compute_metrics, x, y, y_pred, **weighted)
    if model._compile_loss is not None and not model._compile_loss.built:
        keras_backend.compute_output_spec(model._compute_loss, x, y, y_pred, training=False, **weighted)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    model._post_build()


def _symbolic(leaf):
    return (
        None if leaf is None else keras.KerasTensor(leaf.shape, keras_backend.standardize_dtype(leaf.dtype))
    )
