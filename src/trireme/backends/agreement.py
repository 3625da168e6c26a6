"""Whether the workers read what they are meant to read, found out before they train on it.

Where all workers read one source, each takes its rows of every batch, which gives the global batch only if all have
the same batch. So they compare: the whole input at the beginning of a call, then the shapes of every batch, and the
contents of some. Where each worker reads a source of its own, they tell each other how many rows they have.

Contents are compared by checksums of at most some ten thousand numbers spread over an array: another order of the rows
or other random numbers show in those, and it costs next to nothing.
"""

import itertools
import typing
import warnings
import zlib

import numpy as np
from keras.src import tree

from trireme.errors import InputsDiffer, UnsupportedInput

NUM_SAMPLED = 1 << 14
_FIRST_COMPARED = 3
_THEN_EVERY = 16
_END = -1

_HOW_TO_MEND = (
    "All workers must read the same batches in the same order; each then takes its rows of every batch. Make what is "
    "drawn at random in the input repeatable: call keras.utils.set_random_seed(1) before it is made, or give it a seed "
    "of its own. Or let each worker read data of its own: "
    "fit(strategy.distribute_datasets_from_function(make_dataset))."
)


class FilesNotShared(Exception):
    """The files of a pipeline cannot be divided among the workers; on all of them."""


class Seen(typing.NamedTuple):
    """What workers compare of a batch.

    Attributes:
        num_rows: the rows of each part of the batch.
        shapes: the shapes of its arrays.
        checksum: of their contents, or 0 where those are not compared.
    """

    num_rows: tuple
    shapes: tuple
    checksum: int

    def __str__(self):
        shapes = " ".join("×".join(map(str, shape)) for shape in self.shapes)
        contents = f", checksum {self.checksum:x}" if self.checksum else ""
        return f"{self.num_rows[0]} rows, shapes {shapes}{contents}"


def compares_contents(number):
    """Whether the contents of the batch at index `number` are compared; also for an integer tensor."""
    return (number < _FIRST_COMPARED) | (number % _THEN_EVERY == 0)


def common_batches(batches, see, source, backend):
    """Yields the batches of an iterator that all workers read, as long as all of them have the same.

    Args:
        batches: the iterator.
        see: function from a batch and its index to what is `Seen` of it.
        source: the `Source` that it reads.
        backend: the backend, for the exchange among workers.

    Raises:
        InputsDiffer: the workers have different batches; on all of them.
        UnsupportedInput: the parts of a batch have different numbers of rows.
    """
    for number in itertools.count():
        batch = next(batches, None)
        seen = None if batch is None else see(batch, number)
        if seen is not None and (() in seen.shapes or len(set(seen.num_rows)) > 1):
            raise UnsupportedInput(
                f"The arrays of the batch at index {number} of `{source.name}` have {seen.num_rows} rows and the "
                f"shapes {seen.shapes}: one number of rows was expected for all. If the input is not batched yet, "
                "batch it, with the global batch size: `dataset.batch(batch_size)`."
            )
        _compare(seen, f"The batch at index {number} of `{source.name}`", backend)
        if batch is None:
            return
        yield batch


def _compare(seen, what, backend):
    if seen is None:
        own = np.array([_END, 0, 0], np.int64)
    else:
        own = np.array([seen.num_rows[0], zlib.crc32(repr(seen.shapes).encode()), seen.checksum], np.int64)
    # The largest and the smallest of the workers' numbers in one exchange.
    largest = backend.all_reduce(np.concatenate([own, -own]), "max")
    if np.array_equal(largest[: len(own)], -largest[len(own) :]):
        return
    text = "no batch any more" if seen is None else str(seen)
    raise InputsDiffer(
        f"{what} is not the same on all workers ({_by_worker(gather_texts(text, backend))}). {_HOW_TO_MEND}"
    )


def own_or_whole(own, whole, source):
    """Yields from the iterator `own`, or from what `whole()` returns where the files cannot be divided."""
    try:
        yield from own
    except FilesNotShared:
        warn_of_files(source.name, "there are fewer files than workers.")
        yield from whole()


def own_batches(batches, num_rows, source, backend, kind_of=lambda batch: ""):
    """Yields `(rows of each worker, own batch)` as long as any worker has a batch; the own one is None where it ended.

    Args:
        batches: the iterator over this worker's batches.
        num_rows: function from a batch to its rows.
        source: the `Source` that it reads.
        backend: the backend, for the exchange among workers.
        kind_of: function from a batch to a text about it that must be the same on all workers.

    Raises:
        UnsupportedInput: a worker has not even one batch; on all of them.
        FilesNotShared: the same, where it could be read by all workers instead.
        InputsDiffer: the workers' batches are of different kinds; on all of them.
    """
    cluster = backend.cluster
    kind = ""
    for number in itertools.count():
        batch = _next_own(batches, source)
        kind = kind if batch is None else kind_of(batch)
        # Everybody's entry is larger than what the others put in its place.
        table = np.full((cluster.num_workers, 2), _END - 1, np.int64)
        table[cluster.rank] = _END if batch is None else num_rows(batch), zlib.crc32(kind.encode())
        counts, kinds = backend.all_reduce(table, "max").T.tolist()
        if number and all(count == _END for count in counts):
            return
        if number == 0 and _END in counts:
            if source.whole is not None:
                raise FilesNotShared
            raise UnsupportedInput(
                f"`{source.name}` has no batch on worker {counts.index(_END)} of {cluster.num_workers}. Each worker "
                "needs at least one, to know what a batch looks like. Take fewer workers, or divide the data evenly."
            )
        if len(set(kinds)) > 1:
            raise InputsDiffer(
                f"The workers' batches at index {number} of `{source.name}` are not alike "
                f"({_by_worker(gather_texts(kind, backend))}). Only the number of rows may differ: the devices hold "
                "them as one array."
            )
        yield [max(count, 0) for count in counts], batch


def _next_own(batches, source):
    try:
        return next(batches, None)
    except Exception as error:
        # TensorFlow tells too few files to those workers that got one, when they read; the others get nothing.
        if source.whole is None or "FILE based sharding" not in str(error):
            raise
        return None


def warn_of_files(name, reason):
    """Tells that every worker reads all of a pipeline although it asks for `AutoShardPolicy.FILE`."""
    warnings.warn(
        f"`{name}` asks for AutoShardPolicy.FILE, but its files cannot be divided among the workers: {reason} "
        "Every worker reads all of it and keeps its rows of each batch, as under DATA.",
        stacklevel=3,
    )


def compare_sources(source, backend):
    """Compares an input as a whole among the workers, before anything is read of it.

    Raises:
        InputsDiffer: the workers were given different inputs; on all of them.
    """
    if source.is_own or backend.cluster.num_workers == 1:
        return
    texts = gather_texts(_described(source), backend)
    if len(set(texts)) > 1:
        raise InputsDiffer(
            f"`{source.name}` is not the same on all workers ({_by_worker(texts)}). {_HOW_TO_MEND}"
        )


def compare_batch(batch, method, backend):
    """Compares the global batches that the workers gave to `train_on_batch` or the like.

    Raises:
        InputsDiffer: they are not the same; on all workers.
    """
    leaves = [
        leaf if hasattr(leaf, "shape") else np.asarray(leaf)
        for leaf in tree.flatten(batch)
        if leaf is not None
    ]
    _compare(see_arrays(leaves, with_contents=True), f"The batch that `{method}` was given", backend)


def gather_texts(text, backend):
    """Returns the list of every worker's `text`."""
    return [part.tobytes().decode() for part in backend.all_gather(np.frombuffer(text.encode(), np.uint8))]


def _by_worker(texts):
    return "; ".join(f"worker {rank}: {text}" for rank, text in enumerate(texts))


def _described(source):
    adapter = source.adapter
    words = [type(adapter).__name__.removesuffix("Adapter").removesuffix("Data")]
    words.append("of unknown length" if adapter.num_batches is None else f"of {adapter.num_batches} batches")
    if adapter.batch_size is not None:
        words.append(f"with batch size {adapter.batch_size}")
    return " ".join(words + [_described_array(array) for array in source.arrays()])


def _described_array(array):
    shape = "×".join(map(str, array.shape))
    dtype = getattr(array, "dtype", type(array).__name__)
    return f"{dtype} {shape} (checksum {checksum(arrays_of(_some_rows(array))):x})"


def _some_rows(array):
    """Returns some of the rows of an array, spread over it; all of them where it cannot be sliced."""
    if _is_sparse(array) or not hasattr(array, "__getitem__"):
        return array
    num_rows = int(array.shape[0])
    num_entries = int(np.prod([size or 1 for size in array.shape[1:]], dtype=np.int64))
    wanted = max(NUM_SAMPLED // max(num_entries, 1), 8)
    step = max(num_rows // wanted, 1)
    return array.iloc[::step] if hasattr(array, "iloc") else array[::step]


def _is_sparse(array):
    return hasattr(array, "dense_shape") or hasattr(array, "tocsr") or hasattr(array, "todense")


def arrays_of(array):
    """Returns the NumPy arrays that an array consists of: several, where it is sparse or ragged."""
    if hasattr(array, "tocoo"):  # scipy
        coo = array.tocoo()
        return [coo.row, coo.col, coo.data]
    if hasattr(array, "dense_shape"):  # tf.SparseTensor
        return [np.asarray(array.indices), np.asarray(array.values)]
    if hasattr(array, "flat_values"):  # tf.RaggedTensor
        return [np.asarray(array.flat_values), *(np.asarray(splits) for splits in array.nested_row_splits)]
    if hasattr(array, "todense"):  # jax.experimental.sparse
        return [np.asarray(array.indices), np.asarray(array.data)]
    if hasattr(array, "detach"):  # torch
        return [_bytes_of_tensor(array.detach())]
    if hasattr(array, "to_numpy"):  # pandas
        return [array.to_numpy()]
    return [np.asarray(array)]


def _bytes_of_tensor(tensor):
    import torch

    flat = tensor.reshape(-1)
    flat = flat[:: max(len(flat) // NUM_SAMPLED, 1)].contiguous()
    return flat.view(torch.uint8).cpu().numpy() if len(flat) else np.zeros(0, np.uint8)


def checksum(arrays):
    """Returns a number above 0 that differs, in all likelihood, for arrays that differ."""
    value = 0
    for array in arrays:
        flat = array.reshape(-1)
        flat = np.ascontiguousarray(flat[:: max(len(flat) // NUM_SAMPLED, 1)])
        as_bytes = repr(flat.tolist()).encode() if flat.dtype.hasobject else flat.view(np.uint8)
        value = zlib.crc32(as_bytes, value)
    return value + 1


def see_arrays(arrays, with_contents):
    """Returns what is `Seen` of a batch that consists of `arrays`: NumPy's or those of a framework."""
    # A ragged tensor has None for sizes that differ from row to row.
    shapes = tuple(tuple(size if size is None else int(size) for size in array.shape) for array in arrays)
    num_rows = tuple(shape[0] if shape else 1 for shape in shapes)
    contents = checksum([part for array in arrays for part in arrays_of(array)]) if with_contents else 0
    return Seen(num_rows, shapes, contents)
