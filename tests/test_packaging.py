"""What a user installs: the wheel holds the package, all of it and nothing else."""

import email
import pathlib
import subprocess
import sys
import zipfile

import pytest

import trireme

PROJECT = pathlib.Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture
def metadata(wheel):
    (path,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(path))


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel):
    source = PROJECT / "src"
    expected = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == expected
    assert "trireme/py.typed" in packed


def test_the_metadata_names_version_licence_and_command(wheel, metadata):
    assert metadata["Name"] == "keras-trireme"
    assert metadata["Version"] == trireme.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    folder = f"keras_trireme-{trireme.__version__}.dist-info"
    assert b"Apache License" in wheel.read(f"{folder}/licenses/LICENSE")
    assert b"trireme = trireme.cli.main:main" in wheel.read(f"{folder}/entry_points.txt")


def test_no_extra_of_a_user_fights_a_gpu_install(metadata):
    """`tensorflow[and-cuda]` is the distribution of our extra; `tensorflow-cpu` would overwrite its files."""
    cpu = [one for one in metadata.get_all("Requires-Dist") if one.startswith("tensorflow-cpu")]
    assert cpu and all(one.endswith("extra == 'test'") for one in cpu)
