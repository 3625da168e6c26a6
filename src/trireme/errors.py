"""Every exception Trireme raises.

    TriremeError
    ├── UsageError               a call or a command line that cannot work            exit 64
    │   ├── UnsupportedInput     an input kind a strategy does not take
    │   ├── InvalidJob           a job that no cluster can run: every mistake in it
    │   └── RelaunchImpossible   several processes are needed where none can be started
    ├── ConfigurationError       the environment describes no consistent cluster      exit 78
    ├── WorkersFailed            a launched run ended with a failed worker
    ├── WorkersOutOfStep         the workers of a run do not run the same steps
    │   └── InputsDiffer         ... because they were given different data
    ├── PeerLost                 another process of the run failed or went away       exit 75
    │   └── PeerTimeout          ... or did not answer within the deadline
    ├── RestartBudgetUsedUp      the run failed more often than it may be restarted   exit 65
    ├── ClusterUnreachable       a cluster's API server does not answer
    ├── ClusterRefused           a cluster's API server said no
    ├── BackupDamaged            backups exist, and not one of them is whole          exit 78
    ├── BackupNotWritten         a backup could not be stored
    │   └── BackupStorageFull    ... because there is no room for it
    ├── ProtocolError            a message between worker and server breaks the protocol
    └── InjectedFault            a fault plan asked for an error here

An exception is named after what happened. Its message says what happened with the values, what
was expected, and what to type.
"""

from collections.abc import Sequence

EXIT_USAGE = 64
EXIT_RESTART_BUDGET_USED_UP = 65
EXIT_PEER_LOST = 75
EXIT_CONFIGURATION = 78
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class TriremeError(Exception):
    """Base of everything Trireme raises on purpose.

    `exit_code` is what a process ends with when nobody catches the error.
    """

    exit_code = 1


class UsageError(TriremeError, ValueError):
    """A call or a command line that cannot work, found before any work started."""

    exit_code = EXIT_USAGE


class UnsupportedInput(UsageError):
    """An input kind that a strategy does not take; the message names it and what to pass instead."""


class InvalidJob(UsageError):
    """A job that no cluster can run.

    `mistakes` holds every mistake that was found, each a sentence with what to type instead; the
    message lists them.
    """

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__(mistakes)
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n  - ".join(["This job cannot run:", *self.mistakes])


class RelaunchImpossible(UsageError):
    """Several processes are needed, but this process cannot be replaced by a launcher."""


class ConfigurationError(TriremeError, ValueError):
    """The environment describes no consistent cluster; the message names the variable and its value."""

    exit_code = EXIT_CONFIGURATION


class WorkersFailed(TriremeError, RuntimeError):
    """A launched run ended because a worker failed; the message leads with the first failure."""


class WorkersOutOfStep(TriremeError, RuntimeError):
    """The workers of a run do not run the same steps; the message says what each of them came to exchange."""


class InputsDiffer(WorkersOutOfStep):
    """The workers of a run were given different data where all must have the same; nobody has trained on it.

    The message says what each of them has.
    """


class PeerLost(TriremeError, RuntimeError):
    """Another process of the run failed or went away while this one needed it."""

    exit_code = EXIT_PEER_LOST


class PeerTimeout(PeerLost, TimeoutError):
    """Another process of the run did not answer within the deadline; the message names it."""


class RestartBudgetUsedUp(TriremeError, RuntimeError):
    """The run failed more often than it may be restarted."""

    exit_code = EXIT_RESTART_BUDGET_USED_UP


class ClusterUnreachable(TriremeError, RuntimeError):
    """A cluster's API server, or the scheduler's command, does not answer."""


class ClusterRefused(TriremeError, RuntimeError):
    """A cluster's API server said no; `status` is the HTTP status of its answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class BackupDamaged(TriremeError, RuntimeError):
    """A backup is not whole; or backups exist and not one of them is, so that going on would start from zero.

    The exit code is one that is never retried: another start would find the same files.
    """

    exit_code = EXIT_CONFIGURATION


class BackupNotWritten(TriremeError, RuntimeError):
    """A backup could not be stored; earlier ones are untouched."""


class BackupStorageFull(BackupNotWritten):
    """A backup could not be stored because there is no room for it; earlier ones are untouched."""


class InjectedFault(TriremeError, RuntimeError):
    """A fault plan asked for an error at this step; only tests see it."""


class BackupWarning(UserWarning):
    """A backup was passed over or could not be stored, and the run goes on without it."""


class ProtocolError(TriremeError, ValueError):
    """A message between a worker and a parameter server that breaks the protocol; the message says where."""
