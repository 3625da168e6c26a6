"""The order of rows on PyTorch workers is the chief's, and what plain Keras would draw."""

import pytest

from tests.once import once
from trireme.testing import run_workers

SHUFFLES = [False, True, "batch"]


def orders():
    """Returns, for each way to shuffle, two epochs of `(rows of the batch, rows that count, rows taken)`."""
    import keras
    import numpy as np
    import torch

    import trireme
    from trireme.backends.adapters import choose_source

    backend = trireme.MirroredStrategy().backend
    rank, is_plain = backend.cluster.rank, backend.cluster.num_workers == 1

    def epochs(shuffle, draws):
        keras.utils.set_random_seed(5)
        source = choose_source(np.arange(13, dtype="int32"), batch_size=4, shuffle=shuffle)
        adapter = source.adapter if is_plain else backend.shard(source)
        seen = []
        for _ in range(2):
            for batch in adapter.get_torch_dataloader():
                if is_plain:
                    seen.append(batch.tolist())
                else:
                    seen.append((batch.num_rows, batch.num_local_rows, batch.data.tolist()))
                if draws:
                    # As dropout does, on as many rows as the worker has.
                    torch.rand(rank + 1)
        return seen

    def state_after_training():
        keras.utils.set_random_seed(5)
        with trireme.MirroredStrategy().scope():
            layers = [keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
            model = keras.Sequential([keras.layers.Input((2,)), *layers])
            model.compile("sgd", "mse")
        model.fit(np.ones((7, 2)), np.ones((7, 1)), batch_size=4, verbose=0)
        return torch.rand(2).tolist()

    return {
        "alone": {str(shuffle): epochs(shuffle, draws=False) for shuffle in SHUFFLES},
        "with draws": {} if is_plain else {str(shuffle): epochs(shuffle, draws=True) for shuffle in SHUFFLES},
        "after training": None if is_plain else state_after_training(),
    }


@once
def of_workers():
    return run_workers(orders, 3, backend="torch")


@once
def of_one_device():
    [results] = run_workers(orders, 1, backend="torch")
    return results


def joined(epochs_of_workers):
    """Returns the global batches, from what each worker took of them."""
    batches = []
    for parts in zip(*epochs_of_workers, strict=True):
        assert {num_rows for num_rows, _, _ in parts} == {sum(count for _, count, _ in parts)}
        batches.append([row for _, count, rows in parts for row in rows[:count]])
    return batches


@pytest.mark.parametrize("shuffle", ["False", "True", "batch"])
def test_the_order_is_that_of_plain_keras(shuffle):
    assert joined([worker["alone"][shuffle] for worker in of_workers()]) == of_one_device()["alone"][shuffle]


@pytest.mark.parametrize("shuffle", ["False", "True", "batch"])
def test_workers_agree_on_the_order_whatever_else_they_draw(shuffle):
    batches = joined([worker["with draws"][shuffle] for worker in of_workers()])
    assert [len(batch) for batch in batches] == [4, 4, 4, 1] * 2
    for epoch in (batches[:4], batches[4:]):
        assert sorted(row for batch in epoch for row in batch) == list(range(13))


def test_a_worker_without_rows_gets_the_first_row_to_compute_with():
    last_of_epoch = [worker["alone"]["False"][3] for worker in of_workers()]
    assert last_of_epoch == [(1, 0, [12]), (1, 0, [12]), (1, 1, [12])]


def test_all_workers_draw_alike_after_a_training_with_dropout():
    first, *others = [worker["after training"] for worker in of_workers()]
    assert others == [first, first]
