"""Which strategy is in scope, and the two moments at which a model meets it: when made and when compiled."""

import contextlib
import contextvars
import functools

from keras.src.trainers.trainer import Trainer

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
    Trainer.__init__ = _then_adopt(Trainer.__init__)
    Trainer.compile = _then_adopt(Trainer.compile)


def _then_adopt(method):
    @functools.wraps(method)
    def adopting(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        strategy = _strategy.get()
        if strategy is not None:
            adopt(self, strategy)
        return result

    return adopting
