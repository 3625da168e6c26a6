"""Who may talk to the servers: CURVE keys (Curve25519), made once per run by the launcher.

Workers know the servers' public key, servers know the workers' public key and let nobody else in. Everything
between them is encrypted and authenticated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trireme.errors import ConfigurationError, UsageError

SERVER_PUBLIC = "TRIREME_SERVER_PUBLIC_KEY"
SERVER_SECRET = "TRIREME_SERVER_SECRET_KEY"
WORKER_PUBLIC = "TRIREME_WORKER_PUBLIC_KEY"
WORKER_SECRET = "TRIREME_WORKER_SECRET_KEY"

_KEY_LENGTH = 40  # Z85, the printable form of 32 bytes


def import_zmq() -> Any:
    """The `zmq` module; UsageError naming the extra to install when it is not there."""
    try:
        import zmq
    except ImportError as error:
        raise UsageError(
            "parameter servers need pyzmq, which is not installed: pip install 'keras-trireme[parameter-server]'"
        ) from error
    return zmq


@dataclass(frozen=True)
class ServerKeys:
    """What a server must know. The secret is not part of the representation."""

    server_secret: str = field(repr=False)
    worker_public: str

    def to_environ(self) -> dict[str, str]:
        return {SERVER_SECRET: self.server_secret, WORKER_PUBLIC: self.worker_public}

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> ServerKeys | None:
        """The keys in `environ`; None without any, ConfigurationError when there are only some."""
        values = _read(environ, SERVER_SECRET, WORKER_PUBLIC)
        return cls(*values) if values else None


@dataclass(frozen=True)
class WorkerKeys:
    """What a worker must know. The secret is not part of the representation."""

    server_public: str
    worker_public: str
    worker_secret: str = field(repr=False)

    def to_environ(self) -> dict[str, str]:
        return {
            SERVER_PUBLIC: self.server_public,
            WORKER_PUBLIC: self.worker_public,
            WORKER_SECRET: self.worker_secret,
        }

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> WorkerKeys | None:
        """The keys in `environ`; None without any, ConfigurationError when there are only some."""
        values = _read(environ, SERVER_PUBLIC, WORKER_PUBLIC, WORKER_SECRET)
        return cls(*values) if values else None


def make_keys() -> tuple[ServerKeys, WorkerKeys]:
    """Fresh keys for one run: the servers' half and the workers' half."""
    zmq = import_zmq()
    server_public, server_secret = (key.decode() for key in zmq.curve_keypair())
    worker_public, worker_secret = (key.decode() for key in zmq.curve_keypair())
    return ServerKeys(server_secret, worker_public), WorkerKeys(server_public, worker_public, worker_secret)


def _read(environ: Mapping[str, str], *names: str) -> list[str] | None:
    found = {name: environ[name] for name in names if environ.get(name)}
    if not found:
        return None
    wrong = [name for name in names if len(found.get(name, "")) != _KEY_LENGTH]
    if wrong:
        raise ConfigurationError(
            f"{' and '.join(wrong)} must hold a key of {_KEY_LENGTH} characters, as make_keys() gives: "
            "set all of " + ", ".join(names) + ", or none"
        )
    return [found[name] for name in names]
