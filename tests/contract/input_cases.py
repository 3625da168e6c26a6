"""Trainings from every kind of input, for `test_exactness.py`: on one device as Keras takes them, shared out on more.

The module is imported for its cases, which go into the table of `cases.py`.

Where the length of an input is unknown, the optimizer is SGD, which does not look at the number of its steps: see
`adam_over_an_unknown_length`.
"""

from tests.contract.cases import case, mlp, numbers_of, rows

NUM_ROWS = 50


def batches_of(num_rows, size, seed=0):
    """Returns the rows of a small regression as a list of batches."""
    x, y = rows(num_rows, seed=seed)
    return [(x[start : start + size], y[start : start + size]) for start in range(0, num_rows, size)]


def py_dataset(batches, grows=False, **options):
    """Returns a `PyDataset` of batches, whose targets may grow with each epoch."""
    import keras

    class Batches(keras.utils.PyDataset):
        def __init__(self):
            super().__init__(**options)
            self.epoch = 0

        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            x, y = batches[index]
            return x, y * (1 + grows * self.epoch)

        def on_epoch_end(self):
            self.epoch += 1

    return Batches()


@case
def batches_of_every_kind(strategy):
    """One model, trained on one kind of input after the other."""
    model = mlp(strategy, "sgd")
    numbers = {}
    for make in (
        data_loaders,
        py_datasets,
        generators,
        grain_dataset,
        pandas_frames,
        endless_dataset,
        few_rows,
    ):
        for name, values in make(strategy, model).items():
            numbers[f"{make.__name__}: {name}"] = values
    return {**numbers, **numbers_of(model)}


def data_loaders(strategy, model):
    import torch

    dataset = torch.utils.data.TensorDataset(*(torch.from_numpy(array) for array in rows(NUM_ROWS)))
    numbers = {}
    if strategy.backend.name == "torch":
        # Orders drawn from PyTorch's own generator, by this process, and ahead for the loader's workers.
        for num_workers in (0, 2):
            loader = torch.utils.data.DataLoader(
                dataset, batch_size=16, shuffle=True, num_workers=num_workers
            )
            numbers[f"{num_workers} workers"] = model.fit(loader, epochs=2, verbose=0).history["loss"]
    generator = torch.Generator().manual_seed(3)
    shuffled = torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True, generator=generator)
    return {**numbers, "of a generator": model.fit(shuffled, epochs=2, verbose=0).history["loss"]}


def py_datasets(strategy, model):
    batches, held_out = batches_of(NUM_ROWS, 16), py_dataset(batches_of(21, 16, seed=1))
    shuffled = model.fit(py_dataset(batches, grows=True), epochs=2, validation_data=held_out, verbose=0)
    numbers = {"shuffled": shuffled.history["loss"], "validated": shuffled.history["val_loss"]}
    for name, options, steps in (
        ("threads", {"workers": 3, "max_queue_size": 3}, None),
        ("processes", {"workers": 2, "use_multiprocessing": True}, None),
        ("shorter epochs", {"workers": 2}, 3),
    ):
        # On one device without workers of the dataset's own, which have no order where epochs are shorter.
        dataset = py_dataset(batches, **({} if strategy.num_replicas_in_sync == 1 else options))
        history = model.fit(dataset, epochs=2, steps_per_epoch=steps, shuffle=False, verbose=0)
        numbers[name] = history.history["loss"]
    return {**numbers, "evaluate": model.evaluate(held_out, verbose=0)}


def generators(strategy, model):
    import itertools

    import numpy as np

    weights = np.arange(16, dtype="float32") % 3
    weighted = ((x, y, weights[: len(x)]) for x, y in batches_of(NUM_ROWS, 16))
    once = model.fit(weighted, verbose=0)
    endless = (batch for batch in itertools.cycle(batches_of(NUM_ROWS, 16)))
    validation = (batch for batch in itertools.cycle(batches_of(21, 16, seed=1)))
    history = model.fit(
        endless, epochs=2, steps_per_epoch=3, validation_data=validation, validation_steps=2, verbose=0
    )
    predicted = model.predict(((x,) for x, _ in batches_of(21, 16, seed=1)), verbose=0)
    return {"once": once.history["loss"], "predict": predicted, **history.history}


def grain_dataset(strategy, model):
    import grain

    x, y = rows(NUM_ROWS)
    dataset = grain.MapDataset.source(range(NUM_ROWS)).shuffle(seed=3).map(lambda index: (x[index], y[index]))
    return {"loss": model.fit(dataset.batch(16), epochs=2, verbose=0).history["loss"]}


def pandas_frames(strategy, model):
    import pandas

    x, y = rows(NUM_ROWS)
    frame, series = pandas.DataFrame(x, columns=list("abcd")), pandas.Series(y[:, 0])
    options = {"batch_size": 16, "epochs": 2, "validation_split": 0.2, "shuffle": False, "verbose": 0}
    history = model.fit(frame, series, **options).history
    return {
        "loss": history["loss"],
        "val_loss": history["val_loss"],
        "predict": model.predict(frame, verbose=0),
    }


def endless_dataset(strategy, model):
    import tensorflow as tf

    def make_dataset():
        x, y = rows(NUM_ROWS)
        signature = (tf.TensorSpec((4,)), tf.TensorSpec((1,)))
        dataset = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=signature)
        return dataset.shuffle(NUM_ROWS, seed=5).batch(16)

    dataset = make_dataset()
    assert int(dataset.cardinality()) < 0
    unknown = model.fit(dataset, epochs=2, validation_data=dataset, verbose=0).history
    endless = model.fit(make_dataset().repeat(), epochs=2, steps_per_epoch=3, verbose=0).history
    return {
        "loss": unknown["loss"],
        "val_loss": unknown["val_loss"],
        "endless": endless["loss"],
        "predict": model.predict(dataset, verbose=0),
    }


def few_rows(strategy, model):
    sizes = [1, 2, 1, 3]
    x, y = rows(sum(sizes))
    parts = [
        (x[stop - size : stop], y[stop - size : stop]) for size, stop in zip(sizes, [1, 3, 4, 7], strict=True)
    ]
    return {"loss": model.fit((part for part in parts), verbose=0).history["loss"]}


@case
def adam_over_an_unknown_length(strategy):
    """At the end of such an input plain Keras on tensorflow begins a step that has no batch, and counts it.

    Replicas count the batches, so one device is given a known length here.
    """
    batches = batches_of(NUM_ROWS, 16)
    is_alone = strategy.num_replicas_in_sync == 1
    model = mlp(strategy, "adam")
    for _ in range(2):
        model.fit(py_dataset(batches) if is_alone else (batch for batch in batches), shuffle=False, verbose=0)
    numbers = {**numbers_of(model), "steps": int(model.optimizer.iterations)}
    if is_alone:
        model.fit((batch for batch in batches), verbose=0)
        counted = int(model.optimizer.iterations) - numbers["steps"]
        assert counted == len(batches) + (strategy.backend.name == "tensorflow")
    return numbers


def lines_files(folder, num_files, num_rows=NUM_ROWS):
    """Writes rows into text files, unevenly, and returns their names."""
    import itertools
    import os

    import numpy as np

    x, y = rows(num_rows)
    ends = np.linspace(0, num_rows, num_files + 1).astype(int) // 3 * 3
    ends[-1] = num_rows
    names = []
    for index, (start, stop) in enumerate(itertools.pairwise(ends)):
        names.append(os.path.join(folder, f"part-{index}.csv"))
        np.savetxt(names[-1], np.hstack([x, y])[start:stop], delimiter=",")
    return names


def dataset_of_files(names, policy, batch_size=12):
    """Returns the pipeline that reads such files, under a policy for sharing them out."""
    import tensorflow as tf

    def parse(line):
        numbers = tf.strings.to_number(tf.strings.split(line, ","))
        return tf.ensure_shape(numbers[:4], [4]), tf.ensure_shape(numbers[4:], [1])

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    files = tf.data.Dataset.from_tensor_slices(names)
    lines = files.interleave(tf.data.TextLineDataset, cycle_length=1)
    dataset = lines.map(parse).with_options(options)
    return dataset.batch(batch_size) if batch_size else dataset


@case
def files_under_the_policies_that_keep_the_order(strategy):
    import tempfile

    model = mlp(strategy)
    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        names = lines_files(folder, 3)
        for policy in ("AUTO", "DATA", "OFF"):
            losses[policy] = model.fit(dataset_of_files(names, policy), verbose=0).history["loss"]
        one_file = dataset_of_files(lines_files(folder, 1), "FILE")
        losses["too few files"] = _read_whole_with_a_warning(model, one_file, strategy)
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    no_files = tf.data.Dataset.from_tensor_slices(rows(NUM_ROWS)).batch(12).with_options(options)
    losses["no files"] = _read_whole_with_a_warning(model, no_files, strategy)
    return {**numbers_of(model), **losses}


def _read_whole_with_a_warning(model, dataset, strategy):
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        losses = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    told = [one for one in caught if "its files cannot be divided among the workers" in str(one.message)]
    assert bool(told) == (strategy.cluster.num_workers > 1), [str(one.message) for one in caught]
    return losses


@case
def sparse_matrices(strategy):
    import keras
    import numpy as np
    import scipy.sparse

    matrix = scipy.sparse.random(NUM_ROWS, 12, 0.3, "csr", "float32", random_state=1)
    y = np.asarray(matrix.sum(axis=1), "float32").reshape(-1, 1)
    with strategy.scope():
        inputs = keras.Input((12,), sparse=keras.backend.backend() != "torch")
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(5, "tanh")(inputs)))
        model.compile("adam", "mse")
    history = model.fit(matrix, y, batch_size=16, epochs=2, verbose=0)
    numbers = {**numbers_of(model, history), "predict": model.predict(matrix, batch_size=16, verbose=0)}
    model.compile("sgd", "mse")
    if strategy.backend.name == "tensorflow":
        import tensorflow as tf

        dense = tf.data.Dataset.from_tensor_slices((matrix.toarray(), y)).batch(16)
        sparse = dense.map(lambda x, y: (tf.sparse.from_dense(x), y))
        numbers["dataset"] = model.fit(sparse, epochs=2, verbose=0).history["loss"]
        generated = ((matrix[start : start + 9], y[start : start + 9]) for start in range(0, NUM_ROWS, 9))
        numbers["generator"] = model.fit(generated, verbose=0).history["loss"]
    return numbers


@case
def ragged_tensors(strategy):
    import keras
    import numpy as np
    import tensorflow as tf

    class MeanOfPadded(keras.layers.Layer):
        """Depends on how far rows are filled up: to the longest of the whole batch."""

        def call(self, inputs):
            if isinstance(inputs, tf.RaggedTensor):
                lengths = keras.ops.cast(inputs.row_lengths(), "float32")
                return keras.ops.stack([tf.reduce_sum(inputs, 1) / 10, lengths / 10], axis=-1)
            return keras.ops.stack([keras.ops.mean(inputs, axis=1), inputs[:, 0]], axis=-1)

        def compute_output_shape(self, shape):
            return (shape[0], 2)

    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, size=30)
    x = tf.RaggedTensor.from_row_lengths(rng.normal(size=lengths.sum()).astype("float32"), lengths)
    y = lengths[:, None].astype("float32")
    with strategy.scope():
        model = keras.Sequential([MeanOfPadded(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    numbers = {**numbers_of(model, history), "predict": model.predict(x, batch_size=8, verbose=0)}
    if strategy.backend.name == "tensorflow":
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        numbers["dataset"] = model.fit(dataset, epochs=2, verbose=0).history["loss"]
    return numbers


# What only the worker itself reads. Plain Keras trains on the batches that the workers' parts make together.


@case
def parts_of_unequal_length(strategy):
    """The first input has 7 batches, the others 6, the last of which is smaller."""
    if strategy.num_replicas_in_sync == 1:
        return {"agrees": True}
    model, plain = _twins(strategy)
    num_inputs = strategy.cluster.num_workers
    replicas = strategy.num_replicas_in_sync // num_inputs

    def parts(index):
        batches = batches_of(7 * 4 if index == 0 else 6 * 4 - 1, 4, seed=index)
        return batches[: 7 if index == 0 else 6]

    def own(make):
        return strategy.distribute_datasets_from_function(
            lambda context: make(parts(context.input_pipeline_id), context)
        )

    steps = _joined([parts(index) for index in range(num_inputs)], replicas)
    assert sum(len(x) for x, _ in steps) == 28 + 23 * (num_inputs - 1)

    def check(context):
        assert context.num_input_pipelines == num_inputs
        assert context.num_replicas_in_sync == strategy.num_replicas_in_sync
        assert context.get_per_replica_batch_size(6) == 6 // strategy.num_replicas_in_sync

    def generator(batches, context):
        check(context)
        return (batch for batch in batches)

    def tf_dataset(batches, context):
        import tensorflow as tf

        return tf.data.Dataset.from_generator(
            lambda: batches, output_signature=(tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
        )

    whole = py_dataset(steps)
    model.fit(own(lambda batches, context: py_dataset(batches)), shuffle=False, verbose=0)
    model.fit(own(generator), verbose=0)
    plain.fit(whole, epochs=2, shuffle=False, verbose=0)
    _compare(
        model.fit(own(tf_dataset), epochs=2, validation_data=own(tf_dataset), verbose=0),
        plain.fit(whole, epochs=2, shuffle=False, validation_data=whole, verbose=0),
    )
    _compare_numbers(model.predict(own(tf_dataset), verbose=0), plain.predict(whole, verbose=0))
    return {"agrees": True}


@case
def files_of_each_worker(strategy):
    import tempfile

    import keras
    import numpy as np
    import tensorflow as tf

    from trireme.data import local_rows

    if strategy.num_replicas_in_sync == 1:
        return {"rows parsed in each epoch": NUM_ROWS}
    batch_size, num_inputs = 12, strategy.cluster.num_workers
    model, plain = _twins(strategy)
    parsed = []

    def expensive(x, y):
        parsed.append(x)
        return x, y

    with tempfile.TemporaryDirectory() as folder:
        names = lines_files(folder, 4)
        read = [np.loadtxt(name, "float32", delimiter=",") for name in names]
        dataset = dataset_of_files(names, "FILE", batch_size=None)
        dataset = dataset.map(lambda x, y: _shaped(tf.numpy_function(expensive, [x, y], [x.dtype, y.dtype])))
        dataset = dataset.batch(batch_size)
        rows_of_inputs = [np.concatenate(read[index::num_inputs]) for index in range(num_inputs)]
        sizes = [local_rows(batch_size, index, num_inputs) for index in range(num_inputs)]
        parts = [
            [(part[:, :4], part[:, 4:]) for part in np.split(all_rows, range(size, len(all_rows), size))]
            for all_rows, size in zip(rows_of_inputs, sizes, strict=True)
        ]
        steps = _joined(parts, 1)
        whole = py_dataset(steps)
        # Before the first epoch a batch may be read to build the model by.
        forget = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epoch or parsed.clear())
        got = model.fit(dataset, epochs=2, validation_data=dataset, callbacks=[forget], verbose=0)
        _compare(got, plain.fit(whole, epochs=2, shuffle=False, validation_data=whole, verbose=0))
        each_epoch = sum(strategy.backend.all_gather(np.array([len(parsed)]))) / 2
    return {"rows parsed in each epoch": each_epoch}


def _shaped(row):
    import tensorflow as tf

    return tf.ensure_shape(row[0], [4]), tf.ensure_shape(row[1], [1])


def _twins(strategy):
    """Returns two models with the same weights: a distributed one, and one of plain Keras."""
    import keras

    model = mlp(strategy)
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    plain.compile("sgd", "mse", metrics=["mae"])
    return model, plain


def _joined(parts_of_inputs, count):
    """Returns the global batches: for each step, `count` parts of each input that still has some."""
    import numpy as np

    steps = []
    for start in range(0, max(len(parts) for parts in parts_of_inputs), count):
        parts = [part for parts in parts_of_inputs for part in parts[start : start + count]]
        steps.append(tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return steps


def _compare(history, expected):
    assert history.history.keys() == expected.history.keys()
    for name, values in expected.history.items():
        _compare_numbers(history.history[name], values)
    for got, wanted in zip(history.model.get_weights(), expected.model.get_weights(), strict=True):
        _compare_numbers(got, wanted)


def _compare_numbers(got, wanted):
    import numpy as np

    np.testing.assert_allclose(got, wanted, 1e-5, 2e-6)
