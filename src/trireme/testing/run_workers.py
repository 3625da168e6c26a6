"""Runs one function on several fresh interpreters, with the manners of a test."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trireme import errors
from trireme.launch import call, local, render
from trireme.launch.job import CALL
from trireme.launch.planning import plan

_WITHOUT_BACKEND = "trireme.launch.worker_process"
_TAIL_LINES = 25


class WorkersFailed(errors.WorkersFailed, AssertionError):
    """A worker failed or did not end in time; the message has the first failure, then the ends of all logs."""


def run_workers(
    function: Callable[..., Any],
    num_workers: int,
    *args: Any,
    backend: str | None = "tensorflow",
    timeout_s: float = 120.0,
    env: Mapping[str, str] | None = None,
    replicas_per_worker: int = 1,
) -> list[Any]:
    """Runs `function(*args)` in `num_workers` worker processes of this machine.

    The function is pickled by value when it comes from a test module, so it need not be importable. Who a
    worker is, it learns from its strategy, or from `trireme.cluster.resolve.resolve(os.environ)`.

    Args:
        function: what every worker runs; it returns data for the caller to assert on.
        num_workers: how many processes.
        *args: the function's arguments.
        backend: the Keras backend, started before the function is called. None starts none.
        timeout_s: seconds the whole may take, and a worker may wait for the others.
        env: environment variables to set in the workers.
        replicas_per_worker: devices each worker drives; with jax on a CPU, virtual ones.

    Returns:
        What the function returned in each worker, in rank order.

    Raises:
        WorkersFailed: it failed somewhere (an AssertionError, so that a test fails and does not break), or was
            not done within `timeout_s`; then the message has every worker's Python stacks.
    """
    folder = tempfile.mkdtemp(prefix="trireme-test-")
    try:
        call.write(folder, function, args, {})
        job = plan(
            folder,
            kind=CALL,
            workers=num_workers,
            replicas=num_workers * replicas_per_worker,
            backend=backend,
            log_dir=os.path.join(folder, "logs"),
            timeout_s=timeout_s,
            environ={**_without_a_cluster(os.environ), **(env or {})},
        )
        job = replace(job, time_limit_s=timeout_s, entry=job.entry if backend else _WITHOUT_BACKEND)
        run = local.execute(job, local.make_log_dir(job), console=None)
        if run.report:
            raise WorkersFailed(run.report + _ends_of_logs(run.log_dir, job.ranks))
        return [call.read_result(folder, rank) for rank in job.ranks]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _without_a_cluster(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with nothing in it that makes this machine part of a larger run."""
    from trireme.cluster.resolve import DETECTORS

    names = {name for detector in DETECTORS for name in detector.variables}
    return {name: value for name, value in environ.items() if name not in names}


def _ends_of_logs(log_dir: str, ranks: range) -> str:
    lines = []
    for rank in ranks:
        with open(render.log_file(log_dir, rank), encoding="utf-8", errors="replace") as log:
            tail = log.read().splitlines()[-_TAIL_LINES:]
        lines += [f"--- end of the log of worker {rank}", *(f"    {line}" for line in tail)]
    return "\n".join(lines) + "\n"
