"""Starting single processes of an asynchronous run again: the others need not notice more than a pause."""

from collections.abc import Callable, MutableSequence

from trireme.launch.processes import WorkerProcess

MAX_REVIVALS = 3


class Revival:
    """Who is started again: whoever was killed by a signal, a few times in a run.

    One that failed by itself would fail again. In runs without servers the workers need each other, so nobody is.

    Args:
        is_asynchronous: whether the run has parameter servers.
        is_ending: whether the run is being ended, so that processes are killed on purpose.
        say: tells the user.
    """

    def __init__(
        self, is_asynchronous: bool, is_ending: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        self._num_left = MAX_REVIVALS if is_asynchronous else 0
        self._is_ending = is_ending
        self._say = say

    def revive(
        self, processes: MutableSequence[WorkerProcess], start: Callable[[WorkerProcess], WorkerProcess]
    ) -> bool:
        """Puts others, made by `start`, in the place of processes that have failed; returns whether there were any."""
        is_any = False
        for index, process in enumerate(processes):
            if process.failure is not None and self._is_allowed(process):
                self._num_left -= 1
                who = f"{process.role} {process.rank} (pid {process.pid})"
                self._say(f"trireme: {who} {process.failure.message}; it is started again\n")
                process.finish()
                processes[index] = start(process)
                is_any = True
        return is_any

    def _is_allowed(self, process: WorkerProcess) -> bool:
        was_killed = process.exit_code is not None and process.exit_code < 0
        return was_killed and self._num_left > 0 and not self._is_ending()
