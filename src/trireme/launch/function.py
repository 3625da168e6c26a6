"""`trireme.launch`: runs a function on several workers and gives back what it returned."""

import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from trireme.errors import WorkersFailed


def launch(
    function: Callable[..., Any],
    *args: Any,
    replicas: int | None = None,
    workers: int | None = None,
    servers: int | None = None,
    backend: str | None = None,
    timeout_s: float | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Runs a function on several workers of this machine, from anywhere: a notebook, a REPL, a test, a script.

    Each worker is a new process in which the backend has been started and a strategy finds its place:

        def train(epochs):
            with trireme.MirroredStrategy().scope():
                model = ...
            return model.fit(...).history

        histories = trireme.launch(train, 10, replicas=4)

    The function may come from `__main__` or a notebook's cell. It, its arguments and its results are
    pickled. Worker 0's output appears here; all output is shown when something fails.

    Args:
        function: what every worker runs.
        *args: its arguments.
        replicas: replicas in total. None: one for each device.
        workers: worker processes. None: one for each replica, with jax one for all of them.
        servers: parameter servers, for a function with ParameterServerStrategy. None: none.
        backend: the Keras backend. None: the one loaded here, else the one Keras would choose.
        timeout_s: seconds a worker may wait for the others. None: 600.
        **kwargs: its keyword arguments.

    Returns:
        What the function returned in each worker, in rank order.

    Raises:
        UsageError: `replicas`, `workers`, `servers` and `backend` cannot work together on this machine.
        WorkersFailed: a worker failed; the message has the first failure's traceback.
    """
    from trireme.launch import call, local, report
    from trireme.launch.job import CALL
    from trireme.launch.output import Console
    from trireme.launch.planning import plan

    folder = tempfile.mkdtemp(prefix="trireme-call-")
    try:
        call.write(folder, function, args, kwargs)
        job = plan(
            folder,
            kind=CALL,
            replicas=replicas,
            workers=workers,
            servers=servers,
            backend=backend or _loaded_backend(),
            timeout_s=timeout_s,
        )
        run = local.execute(job, local.make_log_dir(job), Console.of_streams())
        if run.report:
            raise WorkersFailed(run.report + report.logs_are_in(run.log_dir))
        shutil.rmtree(run.log_dir)
        return [call.read_result(folder, rank) for rank in job.ranks]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _loaded_backend() -> str | None:
    keras = sys.modules.get("keras")
    return None if keras is None else keras.backend.backend()
