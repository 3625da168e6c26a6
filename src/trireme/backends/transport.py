"""Which way bytes go between workers: through memory they share, or by the framework's own runtime."""

import os

from trireme.backends.shared_memory import FD_VARIABLE, SharedMemoryGroup
from trireme.errors import ConfigurationError

CHOICE_VARIABLE = "TRIREME_COLLECTIVES"
_CHOICES = ("auto", "shared_memory", "runtime")


def join_group(backend, on_cpu):
    """Returns this worker's `SharedMemoryGroup`, or None where the framework's runtime is to move the bytes.

    Args:
        backend: a started backend with a cluster of several workers.
        on_cpu: whether the workers train on CPUs.

    Raises:
        ConfigurationError: TRIREME_COLLECTIVES asks for what cannot be.
    """
    choice = os.environ.get(CHOICE_VARIABLE, "auto")
    if choice not in _CHOICES:
        raise ConfigurationError(
            f"{CHOICE_VARIABLE} is {choice!r}; it can be {', '.join(map(repr, _CHOICES))}."
        )
    has_shared_memory = backend.cluster.is_single_machine and FD_VARIABLE in os.environ
    if choice == "shared_memory" and not has_shared_memory:
        raise ConfigurationError(
            f"{CHOICE_VARIABLE} is 'shared_memory', which takes workers of one machine started by `trireme run`. "
            f"These are {backend.cluster!r}; leave the variable out."
        )
    if choice == "runtime" or not has_shared_memory or not (on_cpu or choice == "shared_memory"):
        return None
    return SharedMemoryGroup(
        int(os.environ[FD_VARIABLE]),
        backend.cluster.rank,
        backend.cluster.num_workers,
        backend.timeout_s,
        on_wait=backend.report_waiting,
    )
