"""What a reader copies out of the documents runs: every block of Python, and the quickstart's commands."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.markdown import README, ROOT, blocks, commands
from trireme.testing import run_workers

QUICKSTART = ROOT / "docs" / "quickstart.md"
DEADLINE_S = 200


def run_blocks(sources, folder):
    """Runs programs one after the other in a worker; returns what each printed, or its traceback."""
    import contextlib
    import io
    import os
    import traceback

    os.chdir(folder)
    printed = {}
    for name, source in sources.items():
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output):
                # Under another name than a script's: `trireme.launch` is for processes that are no workers.
                exec(compile(source, name, "exec"), {"__name__": "block"})
        except Exception:
            printed[name] = traceback.format_exc()
        else:
            printed[name] = output.getvalue()
    return printed


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_blocks_run_on_two_replicas(backend, tmp_path):
    sources = {
        f"{path.name}:{block.line}": block.text
        for path in (README, QUICKSTART)
        for block in blocks(path, "python")
    }
    assert len(sources) >= 5
    num_workers, replicas_per_worker = (1, 2) if backend == "jax" else (2, 1)
    workers = run_workers(
        run_blocks,
        num_workers,
        sources,
        str(tmp_path),
        backend=backend,
        replicas_per_worker=replicas_per_worker,
        timeout_s=DEADLINE_S,
    )
    for rank, printed in enumerate(workers):
        for name, text in printed.items():
            assert "Traceback" not in text, f"{name} on worker {rank}:\n{text}"
    assert "replicas: 2" in "".join(workers[0].values())
    assert "replicas: 2" not in "".join("".join(printed.values()) for printed in workers[1:])
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


@pytest.mark.timeout(600)
def test_the_quickstarts_commands_run_as_typed(tmp_path):
    for block in blocks(QUICKSTART, "python"):
        if block.file_name:
            (tmp_path / block.file_name).write_text(block.text)
    printed = {
        command: run(command, tmp_path) for command in commands(QUICKSTART) if not command.startswith("pip ")
    }
    assert "replicas: 1," in printed["python train.py"]
    assert "replicas: 2," in printed["trireme run --replicas 2 train.py"]
    # The same seed and data, so the same numbers.
    [one, two] = [re.search(r"replicas: \d, accuracy: (\S+)", text)[1] for text in list(printed.values())[:2]]
    assert one == two


def test_the_launch_block_runs_in_a_process_of_its_own(tmp_path):
    [block] = [block for block in blocks(QUICKSTART, "python") if "trireme.launch(" in block.text]
    (tmp_path / "cell.py").write_text(block.text)
    assert "2 workers; losses of the chief: [" in run("python cell.py", tmp_path)


def run(command: str, folder) -> str:
    """What a command prints, with this interpreter's `python` and `trireme`."""
    program, *arguments = command.split()
    start = {"python": [sys.executable], "trireme": [sys.executable, "-m", "trireme"]}[program]
    result = subprocess.run(
        [*start, *arguments],
        cwd=folder,
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert result.returncode == 0, f"$ {command}\n{result.stdout}{result.stderr}"
    return result.stdout
