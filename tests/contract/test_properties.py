"""Random small trainings: two replicas against plain Keras, in workers that live for the whole test."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.contract.random_models import train_both
from tests.serving import serving

RTOL, ATOL = 1e-5, 3e-6

# (backend, worker processes, replicas of each, examples): a compiled JAX step takes as long as many eager ones.
WAYS = {"tensorflow": (2, 1, 8), "jax": (1, 2, 4), "torch": (2, 1, 25)}

RECIPES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 1000),
        "is_sequence": st.booleans(),
        "units": st.integers(1, 4),
        "batch_norm": st.booleans(),
        "mask": st.booleans(),
        "regularizer": st.sampled_from([None, "l2"]),
        "loss": st.sampled_from(["MeanSquaredError", "LogCosh", "Huber"]),
        "reduction": st.sampled_from(["sum_over_batch_size", "mean_with_sample_weight", "sum"]),
        "optimizer": st.sampled_from(["SGD", "Adam", "RMSprop", "Adagrad"]),
        "clipping": st.sampled_from([{}, {"clipnorm": 0.3}, {"global_clipnorm": 0.5}, {"clipvalue": 0.2}]),
        "accumulation": st.sampled_from([None, 2, 3]),
        "weights": st.booleans(),
        "num_rows": st.integers(1, 17),
        "batch_size": st.integers(1, 9),
    }
)

PLAIN = {
    "seed": 0,
    "is_sequence": False,
    "units": 2,
    "batch_norm": False,
    "mask": False,
    "regularizer": None,
    "loss": "MeanSquaredError",
    "reduction": "sum_over_batch_size",
    "optimizer": "SGD",
    "clipping": {},
    "accumulation": None,
    "weights": False,
    "num_rows": 9,
    "batch_size": 4,
}
# What the random recipes have found, and what they may miss.
COUNTER_EXAMPLES = {
    "batches of one row, of which a worker has none, and a second loss": {
        "batch_size": 1,
        "reduction": "sum",
        "regularizer": "l2",
    },
    "weights and a mask, which Keras multiplies in place on torch": {
        "is_sequence": True,
        "mask": True,
        "weights": True,
        "reduction": "mean_with_sample_weight",
    },
    "one row": {"num_rows": 1, "batch_size": 1, "batch_norm": True},
    "rows without any entry that counts": {
        "seed": 3,
        "is_sequence": True,
        "mask": True,
        "num_rows": 5,
        "batch_size": 1,
    },
}


@pytest.mark.parametrize("backend", WAYS)
def test_two_replicas_train_any_model_as_plain_keras_does(backend):
    num_workers, replicas_per_worker, num_examples = WAYS[backend]

    with serving(train_both, num_workers, backend, replicas_per_worker=replicas_per_worker) as workers:
        for name, changes in COUNTER_EXAMPLES.items():
            compare(workers, {**PLAIN, **changes}, name)

        # Always the same examples: a test that fails now and then tells nobody what it has found.
        @settings(
            max_examples=num_examples,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(RECIPES)
        def explore(recipe):
            compare(workers, recipe, recipe)

        explore()


def compare(workers, recipe, name):
    answers = workers.ask(recipe)
    failures = [answer for answer in answers if isinstance(answer, str)]
    assert not failures, f"{name}:\n" + "\n".join(failures)
    for rank, answer in enumerate(answers):
        plain, together = answer
        assert plain.keys() == together.keys()
        for key, value in plain.items():
            np.testing.assert_allclose(
                together[key], value, RTOL, ATOL, err_msg=f"{key} on worker {rank}: {name}"
            )
