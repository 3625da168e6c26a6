"""Sums and gathers among workers inside a traced TensorFlow function.

Two ways to move the bytes, with the same three methods:

- `SharedMemoryCollectives`: CPU workers of one machine, through memory they share;
- `RuntimeCollectives`: everything else, by TensorFlow's own collective runtime (NCCL on GPUs, a ring on CPUs).
"""

import numpy as np
import tensorflow as tf

from trireme.backends.buckets import BUCKET_BYTES

# TensorFlow's own alignment of tensors: a NumPy array at such an address becomes a tensor as it is.
_ALIGNMENT = 64


class SharedMemoryCollectives:
    """Collectives through a `SharedMemoryGroup`, called from the graph by `tf.numpy_function`.

    TensorFlow runs stateful operations of one function in the order in which they were traced, so every worker
    enters the group in the same order, while the rest of the backward pass goes on.
    """

    # The exchange works on the same cores as the backward pass: an early start gains nothing, and each call costs.
    first_bucket_bytes = BUCKET_BYTES

    def __init__(self, group):
        self._group = group

    def start_step(self, name):
        """Begins the trace of a step."""

    def all_reduce(self, tensors, weight):
        """Returns the sums over workers of `weight * tensor`, one exchange for the whole list.

        Args:
            tensors: dense tensors of the same accumulation dtype (see `accumulation_dtype`).
            weight: this worker's factor, a scalar float32 tensor.
        """
        dtype = accumulation_dtype(tensors[0].dtype).as_numpy_dtype

        def exchange(weight, *arrays):
            results = _aligned_like(arrays)
            self._group.reduce_into(
                [np.ascontiguousarray(array).reshape(-1) for array in arrays],
                [result.reshape(-1) for result in results],
                dtype,
                weight,
            )
            return results

        sums = tf.numpy_function(exchange, [weight, *tensors], [tensor.dtype for tensor in tensors])
        # Run eagerly, TensorFlow gives a single result without the list around it.
        sums = sums if isinstance(sums, (list, tuple)) else [sums]
        for result, tensor in zip(sums, tensors, strict=True):
            result.set_shape(tensor.shape)
        return sums

    def all_gather(self, tensor):
        """Returns every worker's `tensor`, one after the other in rank order along the first dimension."""
        rows = tf.numpy_function(
            lambda array: np.concatenate(self._group.all_gather(array)), [tensor], tensor.dtype
        )
        rows.set_shape([None, *tensor.shape[1:]])
        return rows


class RuntimeCollectives:
    """Collectives of TensorFlow's runtime.

    Workers find each other's tensors by keys. A key stands for a position in a step and what is exchanged there, not
    for a count of everything ever traced: a worker whose shapes made it trace a step once more still agrees with
    the others. The runtime holds a key to the first shape it saw with it, so the shape is part of what it stands
    for, and gathers of changing lengths have a key for each of a few lengths.
    """

    # Small, so that the exchange starts soon after the backward pass does.
    first_bucket_bytes = 1 << 20

    _GROUP_KEY = 1
    _LENGTHS_PER_KEY = 256

    def __init__(self, num_workers, timeout_s, hint="auto"):
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._hint = hint
        self._keys = {}
        self._step = None
        self._position = 0

    def start_step(self, name):
        """Begins the trace of a step. `name` is the same on all workers, and no other step has it."""
        self._step = name
        self._position = 0

    def all_reduce(self, tensors, weight):
        """See `SharedMemoryCollectives.all_reduce`."""
        dtype = accumulation_dtype(tensors[0].dtype)
        # NaN times 0 is NaN: a worker without rows must send zeros, not its NaN gradients.
        flat = [tf.where(weight > 0, tf.cast(tf.reshape(t, [-1]), dtype), 0) for t in tensors]
        total = self._reduce(tf.concat(flat, 0) * tf.cast(weight, dtype))
        parts = tf.split(total, [tf.size(part) for part in flat])
        return [
            tf.ensure_shape(tf.cast(tf.reshape(part, tf.shape(t)), t.dtype), t.shape)
            for part, t in zip(parts, tensors, strict=True)
        ]

    def all_gather(self, tensor):
        """See `SharedMemoryCollectives.all_gather`."""
        # The runtime gathers equal shapes only: fill up to a common length, and drop the filling afterwards.
        sizes = self._gather(tf.shape(tensor)[:1])
        length, number = _round_up(tf.reduce_max(sizes))
        filling = [[0, length - tf.shape(tensor)[0]]] + [[0, 0]] * (len(tensor.shape) - 1)
        rows = self._gather(tf.pad(tensor, filling), number)
        rows = tf.boolean_mask(rows, tf.reshape(tf.sequence_mask(sizes, length), [-1]))
        rows.set_shape([None, *tensor.shape[1:]])
        return rows

    def _reduce(self, tensor):
        common = self._next_operation(tensor, 0)
        return tf.raw_ops.CollectiveReduceV2(input=tensor, merge_op="Add", final_op="Id", **common)

    def _gather(self, tensor, number=0):
        if tensor.dtype.is_bool:
            return tf.cast(self._gather(tf.cast(tensor, tf.int32), number), tf.bool)
        return tf.raw_ops.CollectiveGatherV2(input=tensor, **self._next_operation(tensor, number))

    def _next_operation(self, tensor, number):
        self._position += 1
        # Of a gather's rows the first dimension is in `number`; of everything else it is known and the same everywhere.
        known = tensor.shape[1:] if isinstance(number, tf.Tensor) else tensor.shape
        key = self._keys.setdefault(
            (self._step, self._position, tensor.dtype, tuple(known)), len(self._keys) + 1
        )
        return {
            "group_size": self._num_workers,
            "group_key": self._GROUP_KEY,
            "instance_key": key * self._LENGTHS_PER_KEY + number,
            "ordering_token": [],
            "communication_hint": self._hint,
            "timeout_seconds": self._timeout_s,
        }


def _aligned_like(arrays):
    """Returns new arrays of the same shapes and dtypes, aligned so that TensorFlow takes them without a copy."""
    ends = np.cumsum([-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays])
    memory = np.empty(int(ends[-1]) + _ALIGNMENT, np.uint8)
    memory = memory[-memory.ctypes.data % _ALIGNMENT :]
    starts = [0, *ends[:-1].tolist()]
    return [
        memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


def _round_up(length):
    """Returns the next of four lengths per power of two, and its number among all such lengths, below 256."""
    length = tf.maximum(length, 1)
    exponent = tf.cast(tf.math.floor(tf.math.log(tf.cast(length, tf.float64)) / np.log(2.0)), tf.int32)
    unit = tf.bitwise.left_shift(1, tf.maximum(exponent - 2, 0))
    units = -(-length // unit)
    return units * unit, exponent * 8 + units % 8


def accumulation_dtype(dtype):
    """Returns the dtype in which values of `dtype` are summed: half precision is summed as float32."""
    return tf.float64 if dtype == tf.float64 else tf.float32
