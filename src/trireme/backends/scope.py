"""Which strategy is in scope, and the two moments at which a model meets it: when made and when compiled."""

import contextlib
import contextvars
import functools
import sys

import keras

from trireme.backends import custom_loops
from trireme.backends.adoption import adopt
from trireme.backends.parameter_server import embedding

_strategy = contextvars.ContextVar("trireme_strategy", default=None)

# What to say, once, when a model is compiled while no scope has ever been entered.
_forgotten = []


@contextlib.contextmanager
def entered(strategy):
    """Makes `strategy` adopt every model that is made or compiled meanwhile."""
    _install()
    _forgotten.clear()
    token = _strategy.set(strategy)
    try:
        yield strategy
    finally:
        _strategy.reset(token)


def tell_if_forgotten(cluster):
    """Has the chief say so when a model is compiled in this process of several replicas and no scope was entered.

    A script without a strategy is a valid program, and each worker would train its model alone, for days perhaps.
    """
    if cluster.num_replicas == 1 or not cluster.is_chief:
        return
    _install()
    alone = "each worker trains it" if cluster.num_workers > 1 else "one device trains it"
    _forgotten.append(
        f"trireme: this run has {cluster.num_replicas} replicas, and a model is compiled outside of any strategy's "
        f"scope: {alone} alone, with all the rows. Make and compile it `with trireme.MirroredStrategy().scope():`, or "
        "start the script as it is with `trireme run --strategy mirrored ...`."
    )


@functools.cache
def _install():
    # Keras' own trainer below those of the backends; its name differs between versions.
    trainer = next(base for base in keras.Model.__mro__ if "compile" in vars(base))
    trainer.__init__ = _then_adopt(trainer.__init__)
    trainer.compile = _then_adopt(trainer.compile)
    embedding.install(_strategy.get)
    custom_loops.install()


def _then_adopt(method):
    @functools.wraps(method)
    def adopting(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        strategy = _strategy.get()
        if strategy is not None:
            adopt(self, strategy)
        elif _forgotten and method.__name__ == "compile":
            print(_forgotten.pop(), file=sys.stderr, flush=True)
        return result

    return adopting
