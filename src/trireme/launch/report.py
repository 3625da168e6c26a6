"""The words with which a launcher tells how a run ended."""

import signal
from collections.abc import Iterable, Mapping, Sequence

from trireme.launch.decision import FAILED, INTERRUPTED, STUCK, TIME_LIMIT, Outcome, WorkerView
from trireme.launch.failure_file import Failure
from trireme.recovery.policy import Restart, Stop

_TAIL_LINES = 20
_NAME = "trireme: "


def started(num_workers: int, num_servers: int, log_dir: str) -> str:
    """The one line at the start of a run."""
    servers = f" and {_counted(num_servers, 'parameter server')}" if num_servers else ""
    return f"{_NAME}{_counted(num_workers)}{servers}, output in {log_dir}\n"


def logs_are_in(log_dir: str) -> str:
    """Where to read more."""
    return f"{_NAME}output of all workers: {log_dir}\n"


def restarting(decision: Restart, backup: str | None) -> str:
    """That the run is started again, when, and from where."""
    when = "now" if decision.after_s == 0 else f"in {decision.after_s:g} s"
    where = "what the script itself has saved" if backup is None else f"the newest backup in {backup}"
    return (
        f"{_NAME}{decision.reason}; starting again {when}, from {where} "
        f"(restarts left: {decision.restarts_left})\n"
    )


def given_up(decision: Stop) -> str:
    """Why a run that may be restarted is not."""
    return f"{_NAME}{decision.reason}\n"


def first_step(seconds: float) -> str:
    """How long a restart took."""
    return f"{_NAME}first step {seconds:.1f} s after the end of the failed attempt\n"


def ended(
    outcome: Outcome,
    num_workers: int,
    timeout_s: float,
    stacks: Mapping[int, str],
    logs: Mapping[int, str],
    time_limit_s: float | None = None,
) -> str:
    """What happened, the cause first; empty for a run that went well.

    Args:
        outcome: how the run ended.
        num_workers: workers of the whole run.
        timeout_s: how long workers may wait for each other.
        stacks: Python stacks by rank.
        logs: by rank, the log of each worker, or its end.
        time_limit_s: how long the whole run might take.
    """
    lines = _headline(outcome, num_workers, timeout_s, time_limit_s, logs)
    for rank, text in sorted(stacks.items()):
        lines += [f"{_NAME}stacks of worker {rank}:", text.rstrip()]
    return "".join(f"{line}\n" for line in lines)


def _headline(
    outcome: Outcome,
    num_workers: int,
    timeout_s: float,
    time_limit_s: float | None,
    logs: Mapping[int, str],
) -> list[str]:
    if outcome.kind == FAILED:
        return [
            *_first_failure(outcome.failures[0], num_workers, logs),
            *_absent(outcome),
            *_followers(outcome.failures[1:]),
            *_stopped_by_us(outcome),
        ]
    if outcome.kind == STUCK:
        return [f"{_NAME}{line}" for line in _stuck(outcome, timeout_s)]
    if outcome.kind == TIME_LIMIT:
        return [
            f"{_NAME}still running after {time_limit_s:g} s: {_places(outcome, outcome.culprits)}",
        ]
    if outcome.kind == INTERRUPTED and outcome.signum is not None:
        lines = [f"{_NAME}interrupted by {signal.Signals(outcome.signum).name}{_at_step(outcome)}"]
        for failure in outcome.failures[:1]:
            lines += _first_failure(failure, num_workers, logs)
        return lines + _followers(outcome.failures[1:])
    return []


def _first_failure(failure: Failure, num_workers: int, logs: Mapping[int, str]) -> list[str]:
    who = f"{failure.role} {failure.rank}" + (f" of {num_workers}" if failure.role == "worker" else "")
    lines = [f"{_NAME}{who}{_where(failure)} {_summary(failure)}"]
    if failure.traceback:
        lines.append(failure.traceback.rstrip())
    elif not failure.exception:
        # It could not say itself what happened; its last words may.
        lines += [
            f"    {line}" for line in _tail(logs.get(failure.rank, "") if failure.role == "worker" else "")
        ]
    if failure.exit_code == 128 + signal.SIGKILL:
        lines.append(
            f"{_NAME}nobody here killed it; when memory runs out the kernel does (`dmesg | grep -i oom`)"
        )
    return lines


def _followers(failures: Iterable[Failure]) -> list[str]:
    return [f"{_NAME}then {failure.role} {failure.rank} {_summary(failure)}" for failure in failures]


def _stopped_by_us(outcome: Outcome) -> list[str]:
    failed = {failure.rank for failure in outcome.failures if failure.role == "worker"}
    ranks = [
        worker.rank
        for worker in outcome.workers
        if worker.is_alive and worker.rank not in failed and worker.rank not in outcome.culprits
    ]
    return [f"{_NAME}{_enumerated(ranks)} ended with it"] if ranks else []


def _absent(outcome: Outcome) -> list[str]:
    if not outcome.culprits:
        return []
    return [f"{_NAME}it was waiting for {_places(outcome, outcome.culprits)}"]


def _stuck(outcome: Outcome, timeout_s: float) -> list[str]:
    culprits = set(outcome.culprits)
    waiting = [worker for worker in outcome.workers if worker.is_alive and worker.rank not in culprits]
    if not waiting:
        return [
            f"all workers wait for each other, each in another collective: {_places(outcome, culprits)}",
            f"no wait may take longer than the time-out of {timeout_s:g} s (--timeout)",
        ]
    return [
        f"stuck: {_places(outcome, culprits)}",
        f"{_places(outcome, [worker.rank for worker in waiting])} waited for that; "
        f"no wait may take longer than the time-out of {timeout_s:g} s (--timeout)",
    ]


def _places(outcome: Outcome, ranks: Iterable[int]) -> str:
    """Each of the workers with its process, its step and what holds it."""
    wanted = set(ranks)
    return ", ".join(_place(worker) for worker in outcome.workers if worker.rank in wanted)


def _place(worker: WorkerView) -> str:
    words = [f"pid {worker.pid}", "before its first step" if worker.step is None else f"step {worker.step}"]
    if worker.is_stopped:
        words.append("stopped by a signal such as SIGSTOP")
    elif not worker.is_alive:
        words.append(f"it has ended with exit code {worker.exit_code}")
    return f"worker {worker.rank} ({', '.join(words)})"


def _where(failure: Failure) -> str:
    words = [f"pid {failure.pid}"] if failure.pid else []
    words += [f"step {failure.step}"] if failure.step is not None else []
    return f" ({', '.join(words)})" if words else ""


def _summary(failure: Failure) -> str:
    """What happened to a worker, as the end of a sentence that begins with it; one line."""
    if not failure.exception:
        return failure.message
    if failure.exception == "SystemExit":
        return f"exited with code {failure.exit_code}"
    message = failure.message.strip().splitlines()
    return f"failed with {failure.exception}" + (f": {message[0]}" if message else "")


def _at_step(outcome: Outcome) -> str:
    steps = [worker.step for worker in outcome.workers if worker.step is not None]
    return f" at step {min(steps)}" if steps else ""


def _tail(log: str) -> Sequence[str]:
    return log.rstrip().splitlines()[-_TAIL_LINES:]


def _enumerated(ranks: Sequence[int]) -> str:
    return f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _counted(count: int, noun: str = "worker") -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
