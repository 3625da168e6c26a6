"""Which strategy is in scope, and the two moments at which a model meets it: when made and when compiled."""

import contextlib
import contextvars
import functools

import keras

from trireme.backends.adoption import adopt

_strategy = contextvars.ContextVar("trireme_strategy", default=None)


@contextlib.contextmanager
def entered(strategy):
    """Makes `strategy` adopt every model that is made or compiled meanwhile."""
    _install()
    token = _strategy.set(strategy)
    try:
        yield strategy
    finally:
        _strategy.reset(token)


@functools.cache
def _install():
    # Keras' own trainer below those of the backends; its name differs between versions.
    trainer = next(base for base in keras.Model.__mro__ if "compile" in vars(base))
    trainer.__init__ = _then_adopt(trainer.__init__)
    trainer.compile = _then_adopt(trainer.compile)


def _then_adopt(method):
    @functools.wraps(method)
    def adopting(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        strategy = _strategy.get()
        if strategy is not None:
            adopt(self, strategy)
        return result

    return adopting
