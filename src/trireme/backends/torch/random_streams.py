"""PyTorch's own random generators on several workers.

What every worker must draw alike, such as the order of the rows, is drawn from the chief's generator. What must
differ from worker to worker, such as the units that dropout silences, is drawn from a stream of the worker's own, which
follows from the common seed and the rank.
"""

import contextlib
import hashlib

import numpy as np
import torch


def state():
    """Returns the state of the generators of the CPU and, where there is one, of the current GPU, as bytes."""
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])
    return torch.cat(states).numpy()


def set_state(values):
    """Sets the generators to what `state` returned."""
    values = torch.from_numpy(values.copy())
    num_bytes_of_cpu = len(torch.get_rng_state())
    torch.set_rng_state(values[:num_bytes_of_cpu])
    # A backup may come from a machine without a GPU.
    if torch.cuda.is_available() and len(values) > num_bytes_of_cpu:
        torch.cuda.set_rng_state(values[num_bytes_of_cpu:])


@contextlib.contextmanager
def own_stream(backend):
    """Draws from this worker's own stream meanwhile; afterwards all workers go on from where the chief is."""
    common = state()
    begin_own(backend)
    try:
        yield
    except BaseException:
        # Whoever fails does not wait for the others.
        set_state(common)
        raise
    set_state(backend.broadcast(state()))


def begin_own(backend):
    """Begins this worker's own stream, which follows from the present, common state; the chief's just goes on."""
    if backend.cluster.is_chief:
        return
    words = np.frombuffer(hashlib.sha256(state().tobytes()).digest(), np.uint32)
    seed = np.random.SeedSequence([*words.tolist(), backend.cluster.rank]).generate_state(1, np.uint64)[0]
    torch.manual_seed(int(seed >> np.uint64(1)))


@contextlib.contextmanager
def chiefs_stream(backend):
    """Draws from the chief's stream meanwhile, on every worker, and afterwards from the worker's own again."""
    own = state()
    chiefs = backend.broadcast(own)
    if backend.cluster.is_chief:
        yield
        return
    set_state(chiefs)
    try:
        yield
    finally:
        set_state(own)


@contextlib.contextmanager
def undone():
    """Leaves the generators as they were before."""
    before = state()
    try:
        yield
    finally:
        set_state(before)
