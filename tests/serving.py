"""Workers that stay for a whole test and answer one question after the other."""

import contextlib
import os
import secrets
import tempfile
import threading
import traceback
from multiprocessing.connection import Client, Listener

from trireme.testing import run_workers

_START_S = 120
_ANSWER_S = 60


class Served:
    """Asks all workers the same question. Get one from `serving`."""

    def __init__(self, connections, failures):
        self._connections = connections
        self._failures = failures

    def ask(self, question):
        """Returns every worker's answer. A worker that failed has its traceback, a string, instead."""
        try:
            for connection in self._connections:
                connection.send(question)
            for connection in self._connections:
                assert connection.poll(_ANSWER_S), f"no answer within {_ANSWER_S} s to {question}"
            return [connection.recv() for connection in self._connections]
        except (EOFError, OSError) as error:
            raise AssertionError(f"a worker ended while it was asked {question}: {self._failures}") from error


@contextlib.contextmanager
def serving(answer, num_workers, backend, **options):
    """Starts workers that call `answer(strategy, question)`; ends them afterwards.

    Args:
        answer: a function of a module that is no test module.
        num_workers: processes.
        backend: the Keras backend.
        **options: see `run_workers`.
    """
    key, failures = secrets.token_bytes(16), []
    with tempfile.TemporaryDirectory(prefix="trireme-") as folder:
        address = os.path.join(folder, "socket")

        def run():
            try:
                run_workers(
                    _serve, num_workers, answer, address, key, backend=backend, timeout_s=300, **options
                )
            except BaseException as error:
                failures.append(error)

        with Listener(address, "AF_UNIX", backlog=num_workers, authkey=key) as listener:
            listener._listener._socket.settimeout(_START_S)
            thread = threading.Thread(target=run)
            thread.start()
            connections = []
            try:
                for _ in range(num_workers):
                    connections.append(listener.accept())
                yield Served(connections, failures)
            except TimeoutError as error:
                raise AssertionError(f"the workers did not start: {failures}") from error
            finally:
                for connection in connections:
                    with contextlib.suppress(OSError):
                        connection.send(None)
                thread.join()
                for connection in connections:
                    connection.close()
        if failures:
            raise failures[0]


def _serve(answer, address, key):
    import trireme

    strategy = trireme.MirroredStrategy()
    with Client(address, "AF_UNIX", authkey=key) as connection:
        while (question := connection.recv()) is not None:
            try:
                result = answer(strategy, question)
            except Exception:
                result = traceback.format_exc()
            connection.send(result)
