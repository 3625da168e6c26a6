"""Trireme's own variables, which `trireme run` gives to the workers it starts."""

from collections.abc import Mapping

from trireme.cluster.cluster import RANK, VARIABLES, WORKERS, Cluster
from trireme.errors import ConfigurationError

__all__ = ["NEEDS", "VARIABLES", "detect"]

NEEDS = f"{WORKERS} and {RANK}, which `trireme run` sets"


def detect(environ: Mapping[str, str]) -> Cluster | None:
    """The cluster of `Cluster.to_environ`, or None where it was not written.

    Raises:
        ConfigurationError: a variable is missing or malformed.
    """
    if WORKERS in environ:
        return Cluster.from_environ(environ)
    if RANK in environ:
        raise ConfigurationError(
            f"{RANK}={environ[RANK]!r} is set, but {WORKERS} is not, so nobody knows who the others are. "
            f"Set {WORKERS}=host0:port,host1:port in every process, or `unset {RANK}`."
        )
    return None
