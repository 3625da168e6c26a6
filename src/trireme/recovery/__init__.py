"""What a run needs to survive: backups that are whole, a writer that does not hold training up, a policy of
restarts.

Nothing here knows a framework. The names of `policy` load at once; those that need numpy load when they are
used, so that a supervisor that only decides does not wait for it.
"""

from typing import TYPE_CHECKING, Any

from trireme.recovery.policy import Decision, FailedAttempt, Restart, RestartPolicy, Stop, decide

if TYPE_CHECKING:
    from trireme.recovery.backups import Backups
    from trireme.recovery.snapshot import Snapshot
    from trireme.recovery.writer import BackupWriter

_MODULE_OF = {"Backups": "backups", "Snapshot": "snapshot", "BackupWriter": "writer"}

__all__ = [
    "Backups",
    "BackupWriter",
    "Snapshot",
    "FailedAttempt",
    "RestartPolicy",
    "Decision",
    "Restart",
    "Stop",
    "decide",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
