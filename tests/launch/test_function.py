"""`trireme.launch` runs a function on several workers, from wherever it is called."""

import os
import subprocess
import sys
import textwrap
import types
from dataclasses import replace

import pytest

import trireme
from trireme.cluster.resolve import resolve
from trireme.errors import UsageError, WorkersFailed
from trireme.launch import planning
from trireme.launch.function import launch

DEADLINE_S = 60

# `planning.plan`, but for workers that start no backend.
WITHOUT_BACKEND = """
from dataclasses import replace
from trireme.launch import planning
plan = planning.plan
planning.plan = lambda *args, **options: replace(plan(*args, **options), entry="trireme.launch.worker_process")
"""


@pytest.fixture
def no_backend(monkeypatch):
    plan = planning.plan
    monkeypatch.setattr(
        planning,
        "plan",
        lambda *args, **options: replace(plan(*args, **options), entry="trireme.launch.worker_process"),
    )


def rank_and(*args, **kwargs):
    return resolve(os.environ).rank, args, kwargs


def test_it_is_public():
    assert trireme.launch is launch


def test_results_in_rank_order(no_backend):
    assert launch(rank_and, 1, "a", replicas=3, key=[2]) == [
        (rank, (1, "a"), {"key": [2]}) for rank in range(3)
    ]


def test_the_numbers_of_workers_and_replicas(no_backend):
    def seen():
        cluster = resolve(os.environ)
        return cluster.num_workers, cluster.replicas_per_worker, os.environ["KERAS_BACKEND"]

    assert launch(seen, workers=2, backend="tensorflow") == [(2, 1, "tensorflow")] * 2
    assert launch(seen, replicas=4, backend="jax") == [(1, 4, "jax")]
    assert launch(seen, replicas=4, workers=2, backend="jax") == [(2, 2, "jax")] * 2


def test_the_backend_is_the_one_that_is_loaded_here(no_backend, monkeypatch):
    keras = types.SimpleNamespace(backend=types.SimpleNamespace(backend=lambda: "jax"))
    monkeypatch.setitem(sys.modules, "keras", keras)
    assert launch(lambda: os.environ["KERAS_BACKEND"], replicas=2) == ["jax"]


def test_impossible_numbers_are_refused_before_anything_starts():
    with pytest.raises(UsageError, match="--replicas 3 and --workers 2"):
        launch(rank_and, replicas=3, workers=2, backend="tensorflow")


def test_the_first_failure_is_raised_with_its_traceback_and_where_the_logs_are(no_backend):
    def fail():
        print("before the end")
        if resolve(os.environ).rank == 1:
            raise ValueError("bad row")

    with pytest.raises(WorkersFailed) as caught:
        launch(fail, replicas=2)
    message = str(caught.value)
    assert "worker 1 of 2" in message
    assert 'raise ValueError("bad row")' in message
    folder = message.rstrip().rpartition(": ")[2]
    with open(os.path.join(folder, "worker-1.log")) as log:
        assert "before the end" in log.read()


def test_worker_0_is_heard_here(no_backend, capsys):
    launch(lambda: print("worker", resolve(os.environ).rank, "speaks"), replicas=2)
    assert capsys.readouterr().out == "worker 0 speaks\n"


def run(arguments: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, **options
    )


def test_from_a_script(tmp_path):
    code = """
    import os, trireme
    class Point:
        def __init__(self, x): self.x = x
    def double(point): return Point(2 * point.x)
    if __name__ == "__main__":
        print([point.x for point in trireme.launch(double, Point(4), replicas=2)], Point in map(type, [Point(1)]))
    """
    path = tmp_path / "script.py"
    path.write_text(WITHOUT_BACKEND + textwrap.dedent(code))
    result = run([str(path)])
    assert result.stdout == "[8, 8] True\n", result.stderr


def test_from_a_repl():
    code = WITHOUT_BACKEND + "import trireme\ndef f(): return 6 * 7\n\nprint(trireme.launch(f, replicas=2))\n"
    result = run(["-i"], input=code)
    assert "[42, 42]" in result.stdout, result.stderr


def test_from_code_that_stands_in_no_file_with_its_lines_in_the_traceback(no_backend):
    import linecache

    name = "<cell 3>"
    code = "def cell():\n    return 1 // 0  # the line\n"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    scope = {"__name__": "__main__"}
    exec(compile(code, name, "exec"), scope)
    with pytest.raises(WorkersFailed, match="the line"):
        launch(scope["cell"], replicas=2)


def test_a_function_of_a_module_beside_the_script(tmp_path):
    """It is imported by name in the workers, which look where this process looks."""
    (tmp_path / "beside.py").write_text(
        "import os\nloads = []\ndef f(): return __name__, __file__, len(loads)\n"
    )
    code = "import beside, trireme\nbeside.loads.append(1)\nprint(trireme.launch(beside.f, replicas=2)[1])\n"
    path = tmp_path / "script.py"
    path.write_text(WITHOUT_BACKEND + code)
    result = run([str(path)], cwd="/")
    assert result.stdout == f"('beside', '{tmp_path}/beside.py', 0)\n", result.stderr


def test_from_another_thread(no_backend):
    import threading

    results = []
    thread = threading.Thread(target=lambda: results.extend(launch(lambda: 1, replicas=2)))
    thread.start()
    thread.join()
    assert results == [1, 1]


def test_an_interrupt_ends_the_workers_and_is_raised_here(tmp_path):
    code = """
    import os, pathlib, signal, sys, threading, time, trireme
    folder = pathlib.Path(sys.argv[1])
    def wait():
        (folder / f"pid-{os.environ['TRIREME_RANK']}.part").write_text(str(os.getpid()))
        (folder / f"pid-{os.environ['TRIREME_RANK']}.part").rename(folder / f"pid-{os.environ['TRIREME_RANK']}")
        time.sleep(600)
    def interrupt():
        while len(list(folder.glob("pid-?"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        trireme.launch(wait, replicas=2)
    except KeyboardInterrupt:
        print("interrupted", [os.path.exists(f"/proc/{path.read_text()}") for path in folder.glob("pid-?")])
    """
    path = tmp_path / "script.py"
    path.write_text(WITHOUT_BACKEND + textwrap.dedent(code))
    result = run([str(path), str(tmp_path)])
    assert result.stdout == "interrupted [False, False]\n", result.stderr


def test_nothing_is_left_in_the_caller(no_backend):
    import signal
    import threading

    def state():
        fds = len(os.listdir("/proc/self/fd"))
        return fds, threading.active_count(), [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    launch(lambda: 1, replicas=2)
    before = state()
    launch(lambda: 1, replicas=2)
    assert state() == before
