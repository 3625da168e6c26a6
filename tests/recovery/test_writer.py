"""Training waits for a copy and for nothing else, and no error stays unseen."""

import signal
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest

from trireme.errors import BackupNotWritten, BackupStorageFull, BackupWarning, UsageError
from trireme.recovery import Backups, BackupWriter, Snapshot
from trireme.recovery.store import LocalStore

DEADLINE_S = 30.0


class GatedStore:
    """A folder whose writes of data wait until the gate is opened; or fail, if an error is set."""

    def __init__(self, folder):
        self._store = LocalStore(folder)
        self.location = self._store.location
        self.gate = threading.Event()
        self.is_writing = threading.Event()
        self.error = None

    def __getattr__(self, name):
        return getattr(self._store, name)

    def write(self, name, parts):
        if name.endswith(".data"):
            self.is_writing.set()
            assert self.gate.wait(DEADLINE_S)
            if self.error is not None:
                raise self.error
        self._store.write(name, parts)


@pytest.fixture
def store(tmp_path):
    return GatedStore(tmp_path)


@pytest.fixture
def backups(store):
    return Backups(store, keep=100)


@pytest.fixture
def writer(store, backups):
    writer = BackupWriter(backups)
    yield writer
    store.gate.set()
    store.error = None
    try:
        writer.close(DEADLINE_S)
    except BackupNotWritten:
        writer.close(DEADLINE_S)


def snapshot(step, size=3):
    return Snapshot(0, step, arrays={"a": np.full(size, float(step))}, state={"step": step})


def steps(backups):
    return [backups.load(name).step for name in backups.names()]


def test_submit_does_not_wait_for_the_storage_and_flush_does(store, writer, backups):
    writer.submit(snapshot(1))
    assert store.is_writing.wait(DEADLINE_S)
    assert backups.names() == []
    store.gate.set()
    writer.flush(DEADLINE_S)
    assert steps(backups) == [1]


def test_of_those_that_wait_the_newest_wins_and_the_one_in_work_is_finished(store, writer, backups):
    writer.submit(snapshot(1))
    assert store.is_writing.wait(DEADLINE_S)
    for step in (2, 3, 4):
        writer.submit(snapshot(step))
    store.gate.set()
    writer.flush(DEADLINE_S)
    assert steps(backups) == [1, 4]


@pytest.mark.parametrize("is_behind", [False, True])
def test_what_happens_to_the_arrays_afterwards_is_not_written(store, writer, backups, is_behind):
    array, state = np.ones(4), {"losses": [1.0]}
    if is_behind:
        writer.submit(snapshot(0, size=4))
        assert store.is_writing.wait(DEADLINE_S)
        writer.submit(snapshot(1, size=4))
    writer.submit(Snapshot(0, 2, arrays={"a": array}, state=state))
    array[:] = 7
    state["losses"].append(2.0)
    store.gate.set()
    writer.flush(DEADLINE_S)
    newest = backups.load_newest()
    np.testing.assert_array_equal(newest.arrays["a"], np.ones(4))
    assert newest.state == {"losses": [1.0]}
    if is_behind:
        np.testing.assert_array_equal(backups.load(backups.names()[0]).arrays["a"], np.zeros(4))


def test_two_copies_of_the_arrays_serve_any_number_of_backups(store, writer, backups, monkeypatch):
    copies = []

    def record(snapshot):
        copies.append(snapshot.arrays["a"])
        return save(snapshot)

    save = backups.save
    monkeypatch.setattr(backups, "save", record)
    for step in range(3):
        store.gate.clear()
        store.is_writing.clear()
        for behind in range(4):
            writer.submit(snapshot(10 * step + behind))
            assert store.is_writing.wait(DEADLINE_S)
        store.gate.set()
        writer.flush(DEADLINE_S)
    assert steps(backups) == [0, 3, 10, 13, 20, 23]
    assert len({id(copy) for copy in copies}) <= 2


def test_arrays_that_are_not_copied_are_never_written_to(store, writer, backups):
    array = np.ones(3)
    array.flags.writeable = False
    store.gate.set()
    writer.submit(Snapshot(0, 1, arrays={"a": array}), copy=False)
    writer.flush(DEADLINE_S)
    writer.submit(snapshot(2))
    writer.flush(DEADLINE_S)
    np.testing.assert_array_equal(array, np.ones(3))
    assert steps(backups) == [1, 2]


@pytest.mark.parametrize(
    "call", [lambda writer: writer.submit(snapshot(2)), BackupWriter.flush, BackupWriter.close]
)
def test_an_error_is_raised_by_the_next_call_once(store, writer, backups, call):
    store.error = PermissionError(13, "not yours")
    store.gate.set()
    writer.submit(snapshot(1))
    with writer._changed:
        assert writer._changed.wait_for(writer._is_idle, DEADLINE_S)
    with pytest.raises(BackupNotWritten, match=r"epoch 0, step 1 could not be stored in .*not yours"):
        call(writer)
    store.error = None
    writer.flush(DEADLINE_S)
    assert backups.names() == []


def test_the_backups_go_on_after_an_error(store, writer, backups):
    store.error = ConnectionError("gone")
    store.gate.set()
    writer.submit(snapshot(1))
    with pytest.raises(BackupNotWritten, match="gone"):
        writer.flush(DEADLINE_S)
    store.error = None
    writer.submit(snapshot(2))
    writer.flush(DEADLINE_S)
    assert steps(backups) == [2]


def test_an_error_that_is_not_the_storages_is_raised_too(store, writer):
    store.error = ValueError("a client library's own")
    store.gate.set()
    writer.submit(snapshot(1))
    with pytest.raises(BackupNotWritten, match="a client library's own") as caught:
        writer.flush(DEADLINE_S)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_full_storage_costs_that_backup_and_a_warning(store, writer, backups):
    store.gate.set()
    writer.submit(snapshot(1))
    writer.flush(DEADLINE_S)
    store.error = OSError(28, "No space left on device")
    with pytest.warns(
        BackupWarning, match=r"step 2 could not be stored .*no room.*goes on without this backup"
    ):
        writer.submit(snapshot(2))
        writer.flush(DEADLINE_S)
    store.error = None
    writer.submit(snapshot(3))
    writer.flush(DEADLINE_S)
    assert steps(backups) == [1, 3]


def test_a_full_storage_is_an_error_where_warnings_are(store, writer):
    store.error = OSError(28, "No space left on device")
    store.gate.set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writer.submit(snapshot(2))
        with pytest.raises(BackupNotWritten, match="no room"):
            writer.flush(DEADLINE_S)


def test_without_a_writer_a_full_storage_is_an_error(store, backups):
    store.error = OSError(28, "No space left on device")
    store.gate.set()
    with pytest.raises(BackupStorageFull, match="Free some space, or keep fewer than 100"):
        backups.save(snapshot(1))


def test_a_storage_that_does_not_answer_is_named_after_the_deadline(store, writer):
    writer.submit(snapshot(5))
    with pytest.raises(BackupNotWritten, match=r"step 5 is still being written to .* after 0.01 s"):
        writer.flush(timeout_s=0.01)
    with pytest.raises(BackupNotWritten, match="still being written"):
        writer.close(timeout_s=0.01)


def test_a_wrong_snapshot_is_refused_where_it_is_submitted(writer):
    with pytest.raises(UsageError, match="takes what JSON takes, not set"):
        writer.submit(Snapshot(0, 0, state={"a": {1}}))


def test_close_writes_what_waits_and_ends_the_thread(store, backups):
    store.gate.set()
    with BackupWriter(backups) as writer:
        writer.submit(snapshot(1))
    assert steps(backups) == [1]
    assert not any(thread.name == "trireme-backup" for thread in threading.enumerate())
    writer.close()
    with pytest.raises(UsageError, match="is closed"):
        writer.submit(snapshot(2))


def test_a_writer_that_was_never_used_has_nothing_to_close(backups):
    BackupWriter(backups).close()


PREAMBLE = """
    import signal, sys, threading, time
    import numpy as np
    from trireme.recovery import Backups, BackupWriter, Snapshot
    from trireme.recovery.store import LocalStore

    class SlowStore(LocalStore):
        # Tells the parent when the second backup is half-written, and goes on when the parent says so.
        def write(self, name, parts):
            super().write(name, self.slowly(parts) if "00000002" in name else parts)

        def slowly(self, parts):
            for part in parts:
                yield part[: len(part) // 2]
                print("writing", flush=True)
                sys.stdin.readline()
                yield part[len(part) // 2 :]

    def snapshot(step):
        return Snapshot(0, step, arrays={}, state={"filler": "x" * 100_000})

    writer = BackupWriter(Backups(SlowStore(sys.argv[1])))
    writer.submit(snapshot(1))
    writer.flush()
"""


def start(program, folder):
    text = textwrap.dedent(PREAMBLE) + textwrap.dedent(program)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", text, str(folder)], text=True, **pipes)


def test_a_script_that_forgets_to_close_ends_and_leaves_its_backup(tmp_path):
    with start("writer.submit(snapshot(2))", tmp_path) as process:
        assert process.stdout.readline() == "writing\n"
        _, errors = process.communicate("\n", timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    assert Backups(tmp_path).load_newest().step == 2


HANDLERS = {
    # The second signal finds a handler that only takes note.
    "noted": "signal.signal(signal.SIGTERM, lambda *_: told.set())",
    # The first and the second signal raise out of whatever the main thread does, `close` included.
    "raises": "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))",
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_a_second_sigterm_during_the_last_backup_does_not_cost_it(tmp_path, handler):
    program = f"""
    told = threading.Event()
    {handler}
    try:
        print("ready", flush=True)
        told.wait()
    except SystemExit:
        pass
    writer.submit(snapshot(2))
    writer.close()
    sys.exit(143)
    """
    with start(program, tmp_path) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate("\n", timeout=DEADLINE_S)
    assert process.returncode == 143, errors
    assert Backups(tmp_path).load_newest().step == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_dies_in_the_write_leaves_the_backup_before(tmp_path, number):
    with start("writer.submit(snapshot(2)); writer.close()", tmp_path) as process:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -number
    with pytest.warns(BackupWarning, match="half-written"):
        assert Backups(tmp_path).load_newest().step == 1
