"""One worker process of this machine: starting it, looking at it, sending it signals."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass

from trireme.cluster.board import Entry
from trireme.launch import failure_file, linux
from trireme.launch.decision import WorkerView
from trireme.launch.failure_file import Failure
from trireme.launch.output import Console, Copying
from trireme.launch.render import WorkerSpec
from trireme.launch.variables import FAILURE_FILE

_REAP_WITHIN_S = 10.0


@dataclass
class WorkerProcess:
    """A worker, from its start until it is reaped.

    It leads a session of its own, so its process id is also that of its process group.
    """

    rank: int
    process: subprocess.Popen[bytes]
    failure_path: str
    role: str = "worker"
    copying: Copying | None = None
    exit_code: int | None = None
    failure: Failure | None = None
    stopped_s: float | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def view(self, entry: Entry) -> WorkerView:
        """What is known of the worker at this moment; `entry` is its line on the progress board."""
        self.look_for_end()
        if self.failure is None:
            self.failure = failure_file.read(self.failure_path) or self._unexplained_end(entry)
        return WorkerView(
            rank=self.rank,
            pid=self.pid,
            exit_code=self.exit_code,
            failure=self.failure,
            stopped_s=self._look_for_stop(),
            step=entry.step,
            state=entry.state,
            since_s=entry.since_s,
            rows_per_step=entry.rows_per_step,
        )

    def look_for_end(self) -> int | None:
        """The exit code, minus N for signal N, or None while the worker lives."""
        if self.exit_code is None:
            self.exit_code = _exit_code(self.process)
        return self.exit_code

    def send(self, signum: int) -> None:
        """Sends a signal to the worker alone."""
        if self.exit_code is None:
            # Not reaped before `reap`, so the id is nobody else's.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def send_to_group(self, signum: int) -> None:
        """Sends a signal to the worker and to those of its children that stayed in its process group."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)

    def reap(self) -> None:
        """Waits for the end of a worker that has ended or was killed; its id may be reused afterwards."""
        with suppress(subprocess.TimeoutExpired):
            # A process that hangs inside the kernel, on a lost file server, cannot be waited for.
            self.process.wait(_REAP_WITHIN_S)

    def finish(self) -> None:
        """Lets go of a process that has ended and of what it started, so that another can take its place."""
        self.send_to_group(signal.SIGKILL)
        self.reap()
        if self.copying is not None:
            self.copying.finish()

    def _look_for_stop(self) -> float | None:
        """Since when the worker has been found stopped by a signal, or None."""
        if self.exit_code is not None or not linux.is_stopped(self.pid):
            self.stopped_s = None
        elif self.stopped_s is None:
            self.stopped_s = time.monotonic()
        return self.stopped_s

    def _unexplained_end(self, entry: Entry) -> Failure | None:
        if not self.exit_code:
            return None
        if self.exit_code > 0:
            message = f"exited with code {self.exit_code} and left no traceback"
            code = self.exit_code
        else:
            message = f"was killed by {_signal_name(-self.exit_code)}"
            code = 128 - self.exit_code
        return Failure(self.rank, time.time(), "", message, "", code, entry.step, self.pid, self.role)


def start(spec: WorkerSpec, log_path: str, console: Console | None, role: str = "worker") -> WorkerProcess:
    """Starts one worker, or one server.

    Args:
        spec: what to start.
        log_path: where its output goes, appended.
        console: where its output goes besides; None: to the log file only, and it can read nothing.
        role: `"worker"` or `"server"`.
    """
    if console is not None:
        copying = Copying(console, log_path)
        process = _popen(spec, None, copying.stdout, copying.stderr)
        copying.start()
    else:
        copying = None
        with open(log_path, "ab") as log:
            process = _popen(spec, subprocess.DEVNULL, log.fileno(), log.fileno())
    return WorkerProcess(spec.rank, process, spec.environ[FAILURE_FILE], role, copying)


def _popen(spec: WorkerSpec, stdin: int | None, stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        spec.argv,
        env=dict(spec.environ),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=spec.fds,
        start_new_session=True,
    )


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code, minus N for signal N, or None while it lives.

    The process stays unreaped: its id, which is also that of its group, is not given to another.
    """
    try:
        info = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # Somebody else in this process reaps all children.
        return process.poll()
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
