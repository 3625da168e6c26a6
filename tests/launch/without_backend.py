"""A launcher whose workers start no backend: `python without_backend.py OPTIONS_AS_JSON TARGET ARGUMENTS...`."""

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

FILE = pathlib.Path(__file__)
DEADLINE_S = 60.0


def command(target: object, *arguments: str, flags: tuple[str, ...] = (), **options: object) -> list[str]:
    """The command that starts `options["workers"]` workers; other options are those of `plan` and `Job`."""
    return [sys.executable, *flags, str(FILE), json.dumps(options), str(target), *arguments]


def run(target: object, *arguments: str, flags: tuple[str, ...] = (), **options: object):
    """Runs the launcher to its end."""
    return subprocess.run(
        command(target, *arguments, flags=flags, **options),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def wait_for(is_true: Callable[[], object], what: str) -> object:
    """Waits until something is true, and fails when it never is."""
    give_up = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up:
        value = is_true()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {DEADLINE_S} s in vain until {what}")


def wait_for_file(path: pathlib.Path) -> str:
    """The content of a file that another process writes and renames into place."""
    wait_for(path.exists, f"{path} exists")
    return path.read_text()


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def main() -> None:
    from trireme.launch.local import run as run_job
    from trireme.launch.planning import plan

    options = json.loads(sys.argv[1])
    fields = {name: options.pop(name) for name in ("time_limit_s", "grace_s") if name in options}
    is_last_word = options.pop("is_last_word", False)
    job = plan(sys.argv[2], sys.argv[3:], backend="tensorflow", environ=os.environ, **options)
    sys.exit(run_job(replace(job, entry="trireme.launch.worker_process", **fields), is_last_word))


if __name__ == "__main__":
    main()
