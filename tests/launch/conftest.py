"""Scripts for workers without a framework, and launchers that do not outlive their test."""

import pathlib
import subprocess
import textwrap

import pytest

from tests.launch.without_backend import command

PREAMBLE = """
import os, pathlib, signal, subprocess, sys, threading, time
rank = int(os.environ["TRIREME_RANK"])
folder = pathlib.Path(__file__).parent

def tell(name, text=""):
    \"\"\"Leaves a file for the test, whole or not at all.\"\"\"
    part = folder / f"{name}.part"
    part.write_text(str(text))
    part.rename(folder / name)

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script, with a preamble, into a folder whose name has a space."""
    folder = tmp_path / "a folder"
    folder.mkdir()

    def write(code: str) -> pathlib.Path:
        path = folder / "a script.py"
        path.write_text(PREAMBLE + textwrap.dedent(code))
        return path

    return write


@pytest.fixture
def start():
    """Starts launchers, with pipes for their streams, and kills those that a failed test leaves running."""
    started = []

    def start(target: object, *arguments: str, **options: object) -> subprocess.Popen:
        process = subprocess.Popen(
            command(target, *arguments, **options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()
