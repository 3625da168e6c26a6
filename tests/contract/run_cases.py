"""Runs the cases in a worker. Every module of cases is imported here, so that a worker has all of them."""

import functools
import traceback

from tests.contract import feature_cases, input_cases, optimizer_cases
from tests.contract.cases import CASES, to_host
from tests.contract.saved_model import load_and_train, train_and_save

MODULES = (feature_cases, input_cases, optimizer_cases)
SAVED = "a saved model"


def run_cases(names=None, saved=None):
    """Runs cases in a worker and returns `{case: {name: value}}`; a failed case has its traceback instead.

    Args:
        names: the cases to run; None: all.
        saved: the file of a model to go on with, as an array of bytes; "make": one is made.
    """
    import keras

    import trireme

    strategy = trireme.MirroredStrategy()
    results = {"num_replicas": strategy.num_replicas_in_sync}
    cases = {name: CASES[name] for name in (CASES if names is None else names)}
    if isinstance(saved, str):
        cases[SAVED] = train_and_save
    elif saved is not None:
        cases[SAVED] = functools.partial(load_and_train, content=saved)
    for name, function in cases.items():
        keras.utils.set_random_seed(7)
        try:
            results[name] = {key: to_host(value) for key, value in function(strategy).items()}
        except Exception:
            results[name] = traceback.format_exc()
    return results
