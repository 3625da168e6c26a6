"""A backup that is cut off, by the end of its process or of the disk, costs nothing but itself."""

import os
import subprocess
import sys
import textwrap
import warnings

import pytest

from trireme.errors import BackupWarning
from trireme.recovery import Backups

DEADLINE_S = 120.0

# Forks a child per moment of a save; the child ends itself at that moment, without any clean-up.
KILLED_AT_EVERY_CALL = """
    import os, signal, sys, zlib
    import numpy as np
    from trireme.recovery import Backups, Snapshot

    def snapshot(step):
        return Snapshot(0, step, arrays={"a": np.full(5000, step)}, state={"step": step})

    def end_at(moment):
        count = 0
        def dying(function):
            def call(*arguments, **keywords):
                nonlocal count
                die_if_due()
                result = function(*arguments, **keywords)
                die_if_due()
                return result
            return call
        def die_if_due():
            nonlocal count
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
        for module, name in [(os, "fsync"), (os, "replace"), (os, "open"), (os, "unlink"), (zlib, "crc32")]:
            setattr(module, name, dying(getattr(module, name)))

    for moment in range(1000):
        folder = os.path.join(sys.argv[1], f"{moment:04d}")
        for step in (1, 2):
            Backups(folder, keep=2).save(snapshot(step))
        child = os.fork()
        if child == 0:
            end_at(moment)
            Backups(folder, keep=2).save(snapshot(3))
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
"""


def run(program, *arguments, prefix=()):
    text = textwrap.dedent(program)
    return subprocess.run(
        [*prefix, sys.executable, "-c", text, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_killed_at_any_call_there_is_the_old_backup_or_the_new_one(tmp_path):
    done = run(KILLED_AT_EVERY_CALL, tmp_path)
    assert done.returncode == 0, done.stderr
    found = []
    for folder in sorted(os.listdir(tmp_path)):
        backups = Backups(tmp_path / folder, keep=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BackupWarning)
            newest = backups.load_newest()
        found.append(newest.step)
        assert {backups.load(name).step for name in backups.names()} <= {1, 2, 3}, (
            "what has a manifest is whole"
        )
        assert (newest.arrays["a"] == newest.step).all()
        backups.save(newest)
        assert len(backups.store.names()) <= 6, (
            "two backups are kept, and at most the half of one that was cut off"
        )
    assert len(found) > 20
    assert found == sorted(found), "once the new one is there it stays"
    assert set(found) == {2, 3}


# Saves ever larger backups until one does not fit, and one more that does.
FILLS_UP = """
    import os, resource, sys
    import numpy as np
    from trireme.recovery import Backups, BackupWriter, Snapshot

    def snapshot(step, size):
        return Snapshot(0, step, arrays={"a": np.full(size, step, np.uint8)})

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    def mount():
        import subprocess
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "none", sys.argv[1]], check=True)

    PREPARATION()
    writer = BackupWriter(Backups(sys.argv[2]))
    for step, size in [(1, 100_000), (2, 100_000), (3, 400_000), (4, 100_000)]:
        writer.submit(snapshot(step, size))
        writer.flush()
    writer.close()
    backups = Backups(sys.argv[2])
    print([backups.load(name).step for name in backups.names()], len(os.listdir(sys.argv[1])))
"""


def can_mount():
    try:
        return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("protocol", ["", "local://"])
@pytest.mark.parametrize("preparation", ["limit", "mount"])
def test_a_disk_that_fills_up_costs_that_backup_only(tmp_path, preparation, protocol):
    if preparation == "mount" and not can_mount():
        pytest.skip("only root may mount a small file system")
    # In a mount namespace of its own, the small file system is gone with the process, however that ends.
    prefix = ("unshare", "--mount", "--propagation", "private") if preparation == "mount" else ()
    done = run(FILLS_UP.replace("PREPARATION", preparation), tmp_path, f"{protocol}{tmp_path}", prefix=prefix)
    assert done.stdout == "[1, 2, 4] 6\n", done.stderr
    assert done.stderr.count("BackupWarning") == 1
    assert "The backup of epoch 0, step 3 could not be stored" in done.stderr
    assert "there is no room for it" in done.stderr
