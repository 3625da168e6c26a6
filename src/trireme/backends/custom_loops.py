"""Loops of the user's own, which give gradients to an optimizer outside of `fit` and its like.

There is no `Step` then: nobody says which rows a worker has. Every worker counts the same, so the mean is exact where
all of them have equally many rows, and where each computes the whole batch.
"""

import functools
import hashlib

import keras
import numpy as np

from trireme.backends.adoption import adopted_models, strategy_of
from trireme.backends.optimizers import is_connected
from trireme.errors import UsageError


@functools.cache
def install():
    """Makes an optimizer tell the strategy when it first updates variables of an adopted model."""
    for owner in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        base = next(base for base in owner.__mro__ if "apply" in vars(base))
        base.apply = _telling(base.apply)


def _telling(original):
    @functools.wraps(original)
    def apply(self, grads, trainable_variables=None):
        if is_connected(self):
            return original(self, grads, trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        strategy = _strategy_of(variables)
        if strategy is not None and strategy.backend.takes_over(self, variables):
            # By the instance's own `apply`, which exchanges.
            return self.apply(grads, trainable_variables)
        return original(self, grads, trainable_variables)

    return apply


def _strategy_of(variables):
    wanted = {id(variable) for variable in variables}
    for model in adopted_models():
        if any(id(variable) in wanted for variable in model.trainable_variables):
            return strategy_of(model)
    return None


def refuse_differing_weights(variables, backend):
    """Refuses to begin a custom loop with other weights on each worker, whose gradients would be of no common model.

    Raises:
        UsageError: the values of `variables` differ between workers; on every worker.
    """
    digest = hashlib.sha256()
    for variable in variables:
        digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable)).tobytes())
    digests = backend.all_gather(np.frombuffer(digest.digest(), np.uint8)[np.newaxis])
    others = [rank for rank, each in enumerate(digests) if not np.array_equal(each, digests[0])]
    if others:
        raise UsageError(
            f"A loop of your own begins to train {len(variables)} variables ({variables[0].path}, ...), which hold "
            f"other values on worker{'s' if len(others) > 1 else ''} {', '.join(map(str, others))} than on the chief. "
            "Draw the same on every worker, with keras.utils.set_random_seed(SEED) before the model is made, or load "
            "the same weights everywhere. `model.fit` would begin with the chief's by itself."
        )
