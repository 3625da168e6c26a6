"""Runs the cases in a worker. Every module of cases is imported here, so that a worker has all of them."""

from tests.contract import feature_cases, optimizer_cases
from tests.contract.cases import CASES, to_host

MODULES = (feature_cases, optimizer_cases)


def run_cases(names=None):
    """Runs cases in a worker and returns `{case: {name: value}}`; a failed case has its traceback instead."""
    import traceback

    import keras

    import trireme

    strategy = trireme.MirroredStrategy()
    results = {"num_replicas": strategy.num_replicas_in_sync}
    for name in names or CASES:
        keras.utils.set_random_seed(7)
        try:
            results[name] = {key: to_host(value) for key, value in CASES[name](strategy).items()}
        except Exception:
            results[name] = traceback.format_exc()
    return results
