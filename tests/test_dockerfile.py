"""The image cannot be built in the tests, for no base image can be had: it is linted, and its shell is run."""

import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text()
JOINED = TEXT.replace("\\\n", " ")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_linter_has_nothing_to_say():
    hadolint = shutil.which("hadolint", path=pathlib.Path(sys.executable).parent)
    # DL3013 wants one version of each package, where an image is to have the newest that fits.
    done = subprocess.run(
        [hadolint, "--ignore", "DL3013", str(ROOT / "Dockerfile")], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_exists_and_is_in_the_context():
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    sources = [
        word
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", JOINED, re.MULTILINE)
        for word in line.split()
    ]
    assert "src" in sources
    for source in sources:
        assert (ROOT / source).exists() and f"!{source}" in ignored, source


def test_it_does_not_run_as_root():
    users = re.findall(r"^USER (\S+)$", TEXT, re.MULTILINE)
    assert users == ["1000:1000"], "Kubernetes can tell only from a number that this is not root"


def test_the_extras_exist():
    (named,) = re.findall(r"whl\)\[([\w,-]+)\]", TEXT)
    assert set(named.split(",")) <= EXTRAS.keys()


def chosen_package(backend, device, index=""):
    """What the image would install: its own shell, with `pip` in place of pip."""
    (command,) = re.findall(r"^RUN (case .+)$", JOINED, re.MULTILINE)
    return subprocess.run(
        ["sh", "-euc", f'pip() {{ for word; do :; done; echo "$word"; }}; {command}'],
        env={"BACKEND": backend, "DEVICE": device, "INDEX": index},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_each_variant_installs_the_backend_that_the_extra_asks_for(backend, device):
    done = chosen_package(backend, device, index="index")
    (wanted,) = EXTRAS[backend]
    assert done.returncode == 0, done.stderr
    package, version = re.fullmatch(r"([\w-]+)(?:\[[\w-]+\])?(>=.+)\n", done.stdout).groups()
    assert (package.removesuffix("-cpu"), version) == (backend, wanted.removeprefix(backend))


@pytest.mark.parametrize(
    ("backend", "device", "said"),
    [
        ("torch", "cpu", "--build-arg INDEX"),
        ("theano", "cpu", "BACKEND=theano"),
        ("jax", "tpu", "DEVICE=tpu"),
    ],
)
def test_a_variant_that_cannot_be_built(backend, device, said):
    done = chosen_package(backend, device)
    assert done.returncode == 1 and said in done.stderr
