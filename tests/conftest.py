"""What holds for every test: a clean environment, no framework in this process, nothing left running."""

import os
import pathlib
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The suite tries the same examples each time, so that a change is judged by what it changed. To look further:
# pytest --hypothesis-profile=default
settings.register_profile("suite", derandomize=True)
settings.load_profile("suite")

# Keras freezes its backend at import, and the frameworks' threads outlive a test: they belong into workers.
FRAMEWORKS = ("keras", "tensorflow", "jax", "torch")

# Whoever started pytest must not decide what the code under test believes about its cluster and threads.
FOREIGN_VARIABLES = (
    "TF_CONFIG",
    "KERAS_BACKEND",
    "XLA_FLAGS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "JOB_COMPLETION_INDEX",
)
FOREIGN_PREFIXES = ("TRIREME_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "KUBERNETES_")

# Keras imports these wherever they are installed, which is a third of a worker's start. Only examples, documents and
# benchmarks need them, and are tried as their users have them.
LEAN = pathlib.Path(__file__).with_name("lean")
NOT_LEAN = ("benchmarks", "docs", "end_to_end", "system")

# Processes inherit it, so that one left behind is recognised even when its parent is gone.
MARK = "PYTEST_SESSION_MARK"


def pytest_configure(config: pytest.Config) -> None:
    # What is started with `nohup` or in the background of a script ignores these, and so would every child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name in list(os.environ):
        if name in FOREIGN_VARIABLES or name.startswith(FOREIGN_PREFIXES):
            del os.environ[name]
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    os.environ["GLOG_minloglevel"] = "2"
    worker = getattr(config, "workerinput", {}).get("workerid")
    # Of several pytest processes that share the tests, each has a mark within that of the first.
    os.environ[MARK] = f"{os.environ[MARK]}/{worker}" if worker else uuid.uuid4().hex
    # A developer's ~/.keras/keras.json may name another backend or float type.
    config.keras_home = tempfile.TemporaryDirectory(prefix="trireme-keras-home-")
    os.environ["KERAS_HOME"] = config.keras_home.name


def pytest_unconfigure(config: pytest.Config) -> None:
    config.keras_home.cleanup()


def pytest_collection_finish(session: pytest.Session) -> None:
    imported = frameworks_in_this_process()
    if imported:
        raise pytest.UsageError(
            f"a test module imports {', '.join(imported)} at its top level; import it inside the function "
            "that trireme.testing.run_workers runs in a process of its own"
        )


@pytest.fixture(autouse=True)
def lean_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    folder, *_ = request.path.relative_to(LEAN.parent).parts
    # Not the test's own `monkeypatch`, which would then be undone after `no_framework_in_this_process` has looked.
    with pytest.MonkeyPatch.context() as patch:
        if folder not in NOT_LEAN:
            patch.setenv("PYTHONPATH", str(LEAN), prepend=os.pathsep)
        yield


@pytest.fixture(autouse=True)
def no_framework_in_this_process() -> Iterator[None]:
    before = frameworks_in_this_process()
    yield
    imported = [name for name in frameworks_in_this_process() if name not in before]
    assert not imported, f"this test imported {', '.join(imported)} into the pytest process; use run_workers"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        # The first pytest process looks when all others have ended.
        return
    left = processes_of_this_session()
    if left:
        for pid, command in left.items():
            print(f"\nstill running after the last test: {pid} {command}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def frameworks_in_this_process() -> list[str]:
    return [name for name in FRAMEWORKS if name in sys.modules]


def processes_of_this_session() -> dict[int, str]:
    """Command line by pid of every process below this one, orphans included."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    left = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        # The resource tracker of multiprocessing is pytest's own helper and ends with it.
        is_marked = any(entry == mark or entry.startswith(mark + b"/") for entry in environ.split(b"\0"))
        if is_marked and b"multiprocessing.resource_tracker" not in command:
            left[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return left
