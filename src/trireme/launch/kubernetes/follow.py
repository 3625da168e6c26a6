"""Watches a run in the cluster until it has ended, or until the person who watches leaves."""

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from trireme.errors import EXIT_INTERRUPTED, ClusterRefused, ClusterUnreachable
from trireme.launch.kubernetes.connection import connect
from trireme.launch.kubernetes.objects import RunObjects
from trireme.launch.kubernetes.observation import RunState
from trireme.launch.kubernetes.pod_logs import PodLogs
from trireme.launch.kubernetes.screen import Screen, open_screen
from trireme.launch.kubernetes.verdict import Verdict, hints, judge

POLL_S = 1.0
LOGS_TIMEOUT_S = 60.0


def run(
    name: str,
    objects: Sequence[dict[str, Any]],
    *,
    namespace: str = "",
    log_dir: str | None = None,
    is_deleted_after: bool = False,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Creates a rendered run and watches it; the exit code of the run.

    Args:
        name: the run's name.
        objects: what `render` gives.
        namespace: where they are made; empty for the one the connection comes with.
        log_dir: folder for every rank's output, made if missing. None: a fresh temporary one.
        is_deleted_after: whether the run is deleted once it has ended.
        environ: where `kubectl` and its configuration are looked for; None for this process'.

    Raises:
        UsageError: there is such a run already, or no way to a cluster.
        ClusterRefused, ClusterUnreachable: the run could not be created.
    """
    with connect(os.environ if environ is None else environ) as connection:
        run_objects = RunObjects(connection, name, namespace)
        run_objects.create(objects)
        print(f"trireme: created the run {name} in the namespace {run_objects.namespace}", file=sys.stderr)
        exit_code = follow(run_objects, log_dir)
        if is_deleted_after and exit_code != EXIT_INTERRUPTED:
            run_objects.delete()
        return exit_code


def follow(objects: RunObjects, log_dir: str | None = None, *, poll_s: float = POLL_S) -> int:
    """Shows a run and keeps its logs until it has ended; its exit code. Ctrl-C leaves it running: 130."""
    folder = _log_folder(log_dir)
    screen = open_screen()
    logs = PodLogs(objects, folder, screen.write)
    try:
        verdict = _watch(objects, logs, screen, poll_s)
        if verdict.exit_code:
            # They would wait for workers. Who only watches may have no right to end them.
            with suppress(ClusterRefused, ClusterUnreachable):
                objects.end_servers()
        unread = logs.finish(LOGS_TIMEOUT_S)
    except KeyboardInterrupt:
        screen.close()
        _say(_detached(objects.name))
        return EXIT_INTERRUPTED
    except BaseException:
        # A login that is no longer valid, for example: that is our end, not the run's.
        screen.close()
        _say(_detached(objects.name))
        raise
    screen.close()
    _say(*verdict.lines)
    if unread:
        _say(f"not read to the end: the log of {', '.join(unread)}")
    _say(f"output of all pods: {folder}")
    return verdict.exit_code


def _watch(objects: RunObjects, logs: PodLogs, screen: Screen, poll_s: float) -> Verdict:
    state = RunState(objects.name)
    while True:
        try:
            state = objects.observe()
            lost = objects.unready_nodes() if state.has_leaving_pods else set()
            told = hints(state, time.time(), lost)
        except ClusterUnreachable as error:
            # The run does not depend on who watches it.
            told = [f"{error}; the run goes on without us, asking again"]
        logs.update(state)
        screen.show(state, logs.progress, told)
        verdict = judge(state)
        if verdict is not None:
            return verdict
        time.sleep(poll_s)


def _log_folder(log_dir: str | None) -> str:
    """An existing folder, in which nothing of an earlier run would be taken for this one's."""
    if log_dir is None:
        return tempfile.mkdtemp(prefix="trireme-")
    folder = os.path.abspath(log_dir)
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.startswith(("worker-", "server-")) and name.endswith(".log"):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
    return folder


def _detached(name: str) -> str:
    return (
        f"the run {name} goes on in the cluster. Type `trireme logs {name} --follow` to come back, "
        f"`trireme status {name}` to look, `trireme stop {name}` or `trireme delete {name}` to end it"
    )


def _say(*lines: str) -> None:
    for line in lines:
        print(line if line.startswith("    ") else f"trireme: {line}", file=sys.stderr, flush=True)
