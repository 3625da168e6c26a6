"""Collectives among the processes of one machine, through memory they share.

The launcher creates one anonymous memory file and passes its descriptor to every worker of the machine.
Having no name, it cannot be left behind: the kernel frees it with the last process, also after `kill -9`.

Between processes of one machine this is several times faster than a ring over loopback TCP, which is what
the frameworks' own CPU collectives use; see `docs/benchmarks.md`. On GPUs and between machines the
frameworks' collectives move the bytes.

Layout: one cache line per worker for its counter of arrivals and for what it came to exchange, then two
alternating sets of slots, each one slot per worker and one for the result. An array longer than a slot goes
through in pieces.
"""

import mmap
import os
import threading
import time

import numpy as np

from trireme.backends import futex
from trireme.errors import PeerTimeout, WorkersOutOfStep

FD_VARIABLE = "TRIREME_SHARED_MEMORY_FD"

SLOT_BYTES = 4 << 20
_LINE_BYTES = 64
_HEADER_BYTES = 64 << 10

_REDUCE, _GATHER, _BROADCAST = range(3)
_KINDS = ("sum", "gather", "broadcast")

# In a group of this size at most everybody adds up everything: a second meeting would cost more than the additions.
_LARGEST_DIRECT_GROUP = 3

# Waiting spins for about as long as it takes to fall asleep and to be woken.
_SPIN_S = 50e-6
_REPORT_AFTER_S = 5e-3
# Nobody oversleeps: this is only how often a sleeper looks whether its deadline is over.
_LONGEST_SLEEP_S = 1.0


class SharedMemoryGroup:
    """The workers of one machine, able to reduce, gather and broadcast NumPy arrays among each other.

    Every worker must call the same methods in the same order with arrays of the same shape and dtype
    (`all_gather`: any first dimension). Reductions add in rank order, so the result has the same bits on
    every worker.

    Args:
        fd: descriptor of the memory file, shared by all workers.
        rank: this worker's index.
        size: number of workers.
        timeout_s: seconds a worker waits for its peers before it raises `PeerTimeout`.
        on_wait: called with True when a wait gets long and with False when it is over.
    """

    def __init__(self, fd, rank, size, timeout_s, on_wait=lambda waiting: None):
        self.rank, self.size = rank, size
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        self._arrivals = 0
        self._pieces = 0
        self._lock = threading.Lock()
        num_bytes = _HEADER_BYTES + 2 * (size + 1) * SLOT_BYTES
        if os.fstat(fd).st_size < num_bytes:
            # Every worker may do this, in any order: growing a file to the same size twice is harmless.
            os.ftruncate(fd, num_bytes)
        self._memory = mmap.mmap(fd, num_bytes)
        # Whole cells of this view are stored at once, so a reader never sees half a number.
        cells, stride = memoryview(self._memory).cast("q")[: size * _LINE_BYTES // 8], _LINE_BYTES // 8
        self._arrived = cells[::stride]
        # In turn, like the slots: a fast worker may already have come with its next piece.
        self._purposes = (cells[1::stride], cells[2::stride])
        address = np.frombuffer(self._memory, np.uint8).ctypes.data
        self._wake_words = [futex.low_half(address + rank * _LINE_BYTES) for rank in range(size)]

    def all_reduce(self, array, op="sum"):
        """Returns the sum (`op="sum"`) or the largest (`op="max"`) of every worker's `array`."""
        array = np.asarray(array)
        flat = np.ascontiguousarray(array).reshape(-1)
        result = np.empty_like(flat)
        self.reduce_into([flat], [result], flat.dtype, op=op)
        return result.reshape(array.shape)

    def reduce_into(self, sources, results, dtype, weight=None, op="sum"):
        """Reduces several flat arrays as one: `results[i] = reduce over workers of weight * sources[i]`.

        Args:
            sources: one-dimensional arrays.
            results: arrays of the same lengths, written in place; their dtype may be narrower than `dtype`.
            dtype: dtype of the sum.
            weight: this worker's factor. 0 means that this worker adds nothing, whatever its arrays hold
                (a worker without rows has NaN gradients).
            op: "sum" or "max".
        """
        dtype = np.dtype(dtype)
        combine = {"sum": np.add, "max": np.maximum}[op]
        lengths = [len(source) for source in sources]
        total = sum(lengths)
        room = SLOT_BYTES // dtype.itemsize
        with self._lock:
            for start in range(0, total, room):
                stop = min(start + room, total)
                slots, result = self._next_slots(stop - start, dtype)
                _copy_pieces(sources, lengths, start, stop, slots[self.rank], weight)
                self._meet_for(_REDUCE, total, dtype)
                if self.size <= _LARGEST_DIRECT_GROUP:
                    _combine_pieces(combine, slots, results, lengths, start, stop)
                    continue
                low = (stop - start) * self.rank // self.size
                high = (stop - start) * (self.rank + 1) // self.size
                mine = result[low:high]
                combine(slots[0][low:high], slots[1][low:high], out=mine)
                for slot in slots[2:]:
                    combine(mine, slot[low:high], out=mine)
                self._meet()
                _scatter_pieces(result, results, lengths, start, stop)

    def all_gather(self, array):
        """Returns every worker's `array`, in rank order; first dimensions may differ."""
        array = np.ascontiguousarray(array)
        sizes = np.zeros(self.size, np.int64)
        sizes[self.rank] = array.nbytes
        sizes = self.all_reduce(sizes)
        parts = [np.empty(size, np.uint8) for size in sizes]
        mine = array.reshape(-1).view(np.uint8)
        with self._lock:
            for start in range(0, int(sizes.max()), SLOT_BYTES):
                slots, _ = self._next_slots(SLOT_BYTES, np.dtype(np.uint8))
                piece = mine[start : start + SLOT_BYTES]
                slots[self.rank][: len(piece)] = piece
                self._meet_for(_GATHER, int(sizes.sum()), array.dtype)
                for part, slot in zip(parts, slots, strict=True):
                    into = part[start : start + SLOT_BYTES]
                    into[:] = slot[: len(into)]
        return [part.view(array.dtype).reshape(-1, *array.shape[1:]) for part in parts]

    def broadcast(self, array):
        """Returns worker 0's `array` on every worker."""
        shape = np.shape(array)
        array = np.ascontiguousarray(array)
        received = np.empty(array.nbytes, np.uint8)
        mine = array.reshape(-1).view(np.uint8)
        with self._lock:
            for start in range(0, array.nbytes, SLOT_BYTES):
                slots, _ = self._next_slots(SLOT_BYTES, np.dtype(np.uint8))
                into = received[start : start + SLOT_BYTES]
                if self.rank == 0:
                    slots[0][: len(into)] = mine[start : start + SLOT_BYTES]
                self._meet_for(_BROADCAST, array.size, array.dtype)
                into[:] = slots[0][: len(into)]
        return received.view(array.dtype).reshape(shape)

    def _next_slots(self, length, dtype):
        # Two sets of slots in turn: whoever writes into a set again has met everybody in between, so nobody
        # still reads what the set held before.
        base = _HEADER_BYTES + (self._pieces % 2) * (self.size + 1) * SLOT_BYTES
        self._pieces += 1
        views = [
            np.frombuffer(self._memory, dtype, length, base + index * SLOT_BYTES)
            for index in range(self.size + 1)
        ]
        return views[:-1], views[-1]

    def _meet_for(self, kind, length, dtype):
        """Meets the others, who must have come for the same: workers out of step would mix up their numbers."""
        purposes = self._purposes[self._pieces % 2]
        purposes[self.rank] = own = kind << 56 | ord(dtype.char) << 48 | length
        self._meet()
        if any(purpose != own for purpose in purposes):
            came_for = "; ".join(f"worker {rank}: {_described(p)}" for rank, p in enumerate(purposes))
            raise WorkersOutOfStep(
                f"The workers met for different exchanges ({came_for}). Every worker must run the same steps on the "
                "same global batches: look for inputs that differ in length from worker to worker, and for calls of "
                "fit, evaluate or predict that only some workers make."
            )

    def _meet(self):
        """Waits until every worker has called this as often as this one."""
        self._arrivals += 1
        self._arrived[self.rank] = self._arrivals
        futex.wake(self._wake_words[self.rank])
        stop_spinning = time.perf_counter() + _SPIN_S
        while self._missing():
            if time.perf_counter() > stop_spinning:
                self._sleep_until_all_have_come()
                return
            os.sched_yield()

    def _missing(self):
        """Returns the ranks of those who have not come yet."""
        return [rank for rank, arrived in enumerate(self._arrived) if arrived < self._arrivals]

    def _sleep_until_all_have_come(self):
        start = time.monotonic()
        has_reported = False
        while missing := self._missing():
            waited_s = time.monotonic() - start
            if waited_s > self._timeout_s:
                raise PeerTimeout(
                    f"Worker {self.rank} waited {waited_s:.0f} s in a collective for "
                    f"worker{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of {self.size}. "
                    "A worker is stuck, or the workers do not run the same steps. "
                    "If steps really take that long, raise the limit: `trireme run --timeout SECONDS`."
                )
            if not has_reported and waited_s > _REPORT_AFTER_S:
                self._on_wait(True)
                has_reported = True
            arrived = self._arrived[missing[0]]
            if arrived < self._arrivals:
                limit_s = self._timeout_s - waited_s if has_reported else _REPORT_AFTER_S
                futex.wait(self._wake_words[missing[0]], arrived, min(limit_s, _LONGEST_SLEEP_S))
        if has_reported:
            self._on_wait(False)


def _described(purpose):
    kind, character, length = purpose >> 56, chr(purpose >> 48 & 0xFF), purpose & (1 << 48) - 1
    dtype = np.dtype(character).name if character in np.typecodes["All"] else f"dtype {character!r}"
    return f"{_KINDS[kind]} of {length} {dtype} numbers"


def _pieces_of(lengths, start, stop):
    """Yields `(index, low, high, offset)`: entries low..high of array `index` lie at `offset` in the piece."""
    begin = 0
    for index, length in enumerate(lengths):
        low, high = max(start - begin, 0), min(stop - begin, length)
        if low < high:
            yield index, low, high, begin + low - start
        begin += length


def _copy_pieces(sources, lengths, start, stop, slot, weight):
    if weight is not None and weight == 0:
        slot[:] = 0
        return
    for index, low, high, offset in _pieces_of(lengths, start, stop):
        into = slot[offset : offset + high - low]
        if weight is None:
            np.copyto(into, sources[index][low:high], casting="unsafe")
        else:
            np.multiply(sources[index][low:high], into.dtype.type(weight), out=into, casting="unsafe")


def _scatter_pieces(result, results, lengths, start, stop):
    for index, low, high, offset in _pieces_of(lengths, start, stop):
        np.copyto(results[index][low:high], result[offset : offset + high - low], casting="unsafe")


def _combine_pieces(combine, slots, results, lengths, start, stop):
    for index, low, high, offset in _pieces_of(lengths, start, stop):
        first, *others, last = (slot[offset : offset + high - low] for slot in slots)
        for other in others:
            # In the slots' dtype: the result's own may be narrower.
            first = combine(first, other)
        combine(first, last, out=results[index][low:high], casting="unsafe")
