"""Where the gradients that an optimizer is given become those of the global batch.

At the beginning of `apply`: before clipping, averaging of weights and loss-scale checks, which all come after it.
An optimizer with `gradient_accumulation_steps` adds up this worker's part of the mean gradients instead, and the
workers' sums meet once per update: in `_clip_gradients`, to which Keras hands what has been accumulated.

What does it is the backend's gradient exchange, with these methods:

- `mean(gradients, variables, memory)`: the mean of the workers' gradients over the rows of the global batch;
- `part_of_mean(gradients, variables, memory)`: what this worker would add to that mean, without an exchange;
- `sum(gradients)`: the sum over the workers;
- `is_finite_everywhere(is_finite)`: whether it is so on every worker that has rows;
- `uncompiled(function)`: the function, kept out of what the framework compiles.

`memory` is a dict that lives as long as the optimizer, for what an exchange wants to know the next time.
"""

from trireme.backends.step import is_alone

_IS_CONNECTED = "_trireme_is_connected"


def is_connected(optimizer):
    """Whether `optimizer` is given the gradients of the global batch, by itself or by one around it."""
    return _IS_CONNECTED in vars(optimizer)


def connect_optimizer(optimizer, exchange):
    """Makes `optimizer` take this worker's gradients and apply those of the global batch. Harmless to repeat."""
    if is_connected(optimizer):
        return
    object.__setattr__(optimizer, _IS_CONNECTED, True)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None and inner.gradient_accumulation_steps:
        _check_together(optimizer, exchange)
        connect_optimizer(inner, exchange)
        return
    if inner is not None:
        # It is given what this one has exchanged.
        object.__setattr__(inner, _IS_CONNECTED, True)
    if optimizer.gradient_accumulation_steps:
        _replace_apply(optimizer, exchange, exchange.part_of_mean)
        _sum_at_updates(optimizer, exchange)
    else:
        _replace_apply(optimizer, exchange, exchange.mean)


def _replace_apply(optimizer, exchange, combine):
    original = optimizer.apply
    memory = {}

    @exchange.uncompiled
    def apply(grads, trainable_variables=None):
        grads = list(grads)
        variables = (
            optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
        )
        # Keras has a message of its own for lists that do not match.
        if len(grads) == len(variables) and not is_alone():
            grads = combine(grads, variables, memory)
        return original(grads, trainable_variables)

    object.__setattr__(optimizer, "apply", apply)


def _sum_at_updates(optimizer, exchange):
    original = optimizer._clip_gradients

    @exchange.uncompiled
    def clip_gradients(grads):
        return original(grads if is_alone() else exchange.sum(list(grads)))

    object.__setattr__(optimizer, "_clip_gradients", clip_gradients)


def _check_together(optimizer, exchange):
    """Makes a loss scale follow from the gradients of all workers where these are not exchanged in each step."""
    original = optimizer.check_finite

    @exchange.uncompiled
    def check_finite(grads):
        is_finite = original(grads)
        return is_finite if is_alone() else exchange.is_finite_everywhere(is_finite)

    object.__setattr__(optimizer, "check_finite", check_finite)
