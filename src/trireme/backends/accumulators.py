"""The gradients that an optimizer has accumulated since its last update: each worker's own part, or their sum.

Within a training each worker adds to its own part. Whoever reads them besides, to save them or to train on, finds
what one device would hold: the sum, on every worker. An optimizer remembers which of the two it holds.
"""

import keras
import numpy as np

from trireme.backends.model_state import optimizers_of

_ARE_LOCAL = "_trireme_accumulators_are_local"


def make_local(model, backend):
    """Prepares for a step: the chief keeps what has been accumulated, the others begin with zeros."""
    for optimizer in _accumulating(model, backend):
        if not getattr(optimizer, _ARE_LOCAL, False):
            object.__setattr__(optimizer, _ARE_LOCAL, True)
            if not backend.cluster.is_chief and _is_between_updates(optimizer):
                for variable in _accumulators(optimizer):
                    variable.assign(np.zeros(variable.shape))


def make_global(model, backend):
    """Gives every worker the sum of what all of them have accumulated."""
    for optimizer in _accumulating(model, backend):
        if getattr(optimizer, _ARE_LOCAL, False):
            object.__setattr__(optimizer, _ARE_LOCAL, False)
            if _is_between_updates(optimizer):
                for variable in _accumulators(optimizer):
                    variable.assign(backend.all_reduce(keras.ops.convert_to_numpy(variable)))


def _accumulating(model, backend):
    if backend.sees_global_batch:
        # One program: what it accumulates is what one device would.
        return []
    optimizers = [getattr(optimizer, "inner_optimizer", optimizer) for optimizer in optimizers_of(model)]
    return [
        optimizer for optimizer in optimizers if optimizer.gradient_accumulation_steps and optimizer.built
    ]


def _is_between_updates(optimizer):
    """Whether anything has been accumulated; the same on all workers."""
    # `optimizer.iterations` counts updates.
    return int(optimizer._iterations) % optimizer.gradient_accumulation_steps != 0


def _accumulators(optimizer):
    return [variable for variable in optimizer._accumulated_gradients if variable is not None]
