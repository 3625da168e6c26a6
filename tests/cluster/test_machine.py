import importlib.metadata
import json
import os
import sys

import pytest

from trireme.cluster import machine


@pytest.fixture
def group(tmp_path):
    """Writes the files of control groups into a root folder of its own."""

    def write(cgroup, **files):
        files["proc/self/cgroup"] = cgroup
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ("0::/\n", {}, None),
        # The tightest limit on the way up counts.
        (
            "0::/a/b\n",
            {
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                "sys/fs/cgroup/a/cpu.max": "100000 100000",
                "sys/fs/cgroup/cpu.max": "max 100000",
            },
            1.0,
        ),
        # In a container without its own namespace the path is the host's.
        ("0::/kubepods/pod1/c\n", {"sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        (
            "3:cpu,cpuacct:/a\n2:memory:/\n",
            {
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
        (
            "1:cpu:/\n0::/\n",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
        # cpuset limits nobody's time.
        ("1:cpuset:/\n", {"sys/fs/cgroup/cpuset/cpu.max": "1 1"}, None),
        # Colons are allowed in the names of groups.
        ("0::/a:b\n", {"sys/fs/cgroup/a:b/cpu.max": "200000 100000"}, 2.0),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "garbage"}, None),
    ],
)
def test_cpu_quota(group, cgroup, files, quota):
    assert machine.cpu_quota(group(cgroup, **files)) == quota


def test_cpu_quota_without_control_groups(tmp_path):
    assert machine.cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("allowed", "quota", "cores"), [(8, None, 8), (8, 2.5, 2), (2, 7.0, 2), (8, 0.5, 1), (1, None, 1)]
)
def test_num_cpu_cores(monkeypatch, allowed, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)))
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert machine.num_cpu_cores() == cores


@pytest.mark.parametrize(
    ("visible", "installed", "expected"),
    [
        (None, 8, 8),
        (None, 0, 0),
        ("0,1", 8, 2),
        ("3", 8, 1),
        ("", 8, 0),
        ("-1", 8, 0),
        ("NoDevFiles", 8, 0),
        # CUDA stops at the first entry that names no device.
        ("0,-1,2", 8, 1),
        ("0,9,2", 8, 1),
        (" 0 , 1 ", 8, 2),
        ("0,1", 0, 0),
        ("GPU-8f6d,GPU-11ab", 2, 2),
        ("MIG-8f6d", 1, 1),
    ],
)
def test_num_gpus(visible, installed, expected):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert machine.num_gpus(environ, installed) == expected


def test_num_installed_gpus_counts_device_files():
    names = [
        "null",
        "nvidia0",
        "nvidia1",
        "nvidia10",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-modeset",
        "xnvidia0",
    ]
    assert machine.num_installed_gpus(names) == 3
    assert machine.num_installed_gpus([]) == 0


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'GPU 0: A (UUID: GPU-1)'; echo '  MIG 1g'; echo 'GPU 1: A (UUID: GPU-2)'", 2),
        ("echo 'No devices were found'", 0),
        ("echo 'GPU 0: half dead'; exit 9", 0),
    ],
)
def test_nvidia_smi_is_asked_where_there_are_no_device_files(monkeypatch, tmp_path, script, expected):
    command = tmp_path / "nvidia-smi"
    command.write_text(f'#!/bin/sh\n[ "$1" = -L ] || exit 1\n{script}\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "listdir", lambda folder: ["null"])
    assert machine.num_installed_gpus() == expected


@pytest.fixture
def home(tmp_path):
    def write(text, folder=".keras"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "keras.json").write_text(text)
        return str(tmp_path)

    return write


def test_keras_backend_by_default(tmp_path):
    assert machine.keras_backend({"HOME": str(tmp_path)}) == "tensorflow"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps({"backend": "jax"}), "jax"),
        (json.dumps({"floatx": "float32"}), "tensorflow"),
        # Keras passes over a damaged file too.
        ('{"backend": ', "tensorflow"),
        ("[]", "tensorflow"),
    ],
)
def test_keras_backend_from_the_configuration_file(home, text, expected):
    environ = {"HOME": home(text)}
    assert machine.keras_backend(environ) == expected
    assert machine.keras_backend({**environ, "KERAS_BACKEND": ""}) == expected
    assert machine.keras_backend({**environ, "KERAS_BACKEND": "torch"}) == "torch"


def test_keras_home_comes_before_the_home_folder(home, tmp_path):
    environ = {"HOME": home('{"backend": "jax"}'), "KERAS_HOME": str(tmp_path / "other")}
    assert machine.keras_backend(environ) == "tensorflow"
    home('{"backend": "torch"}', "other")
    assert machine.keras_backend(environ) == "torch"


def test_is_installed_imports_nothing():
    assert machine.is_installed("json")
    assert not machine.is_installed("no_such_framework")
    frameworks = ("tensorflow", "jax", "torch")
    loaded = set(sys.modules)
    for name in frameworks:
        machine.is_installed(name)
        machine.can_use_gpus(name, {})
    assert not {name for name in set(sys.modules) - loaded if name.partition(".")[0] in frameworks}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cuda: Optional[str] = None", False),
        ("cuda: Optional[str] = '12.8'", True),
        ("cuda = '12.8'", True),
        ("hip: Optional[str] = '6.1'", False),
    ],
)
def test_torch_builds_with_and_without_cuda(monkeypatch, tmp_path, line, expected):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "version.py").write_text(f"__version__ = '2.13.0'\n{line}\ngit_version = 'cuda'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert machine.can_use_gpus("torch", {}) is expected


@pytest.mark.parametrize(
    ("names", "platforms", "expected"),
    [
        ({"jax"}, "", False),
        ({"jax", "jax_cuda12_plugin"}, "", True),
        ({"jax", "jax_cuda13_plugin"}, "cuda,cpu", True),
        ({"jax", "jax_cuda12_plugin"}, "cpu", False),
    ],
)
def test_jax_builds_with_and_without_cuda(monkeypatch, names, platforms, expected):
    monkeypatch.setattr(machine, "is_installed", names.__contains__)
    assert machine.can_use_gpus("jax", {"JAX_PLATFORMS": platforms}) is expected


@pytest.mark.parametrize(
    ("installed", "is_cpu_build", "expected"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_tensorflow_builds_with_and_without_cuda(monkeypatch, installed, is_cpu_build, expected):
    def distribution(name):
        if not is_cpu_build:
            raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine, "is_installed", lambda name: installed)
    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    assert machine.can_use_gpus("tensorflow", {}) is expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 1),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, 4),
        ({"XLA_FLAGS": "--a --xla_force_host_platform_device_count=4 --b"}, 4),
        # XLA takes the last of several.
        (
            {
                "XLA_FLAGS": "--xla_force_host_platform_device_count=4 "
                "--xla_force_host_platform_device_count=2"
            },
            2,
        ),
        ({"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}, 1),
        ({"JAX_NUM_CPU_DEVICES": "3"}, 3),
        ({"JAX_NUM_CPU_DEVICES": "-1"}, 1),
    ],
)
def test_num_virtual_devices(environ, expected):
    assert machine.num_virtual_devices(environ) == expected


@pytest.mark.parametrize(
    ("backend", "has_cuda", "gpus", "environ", "expected"),
    [
        ("tensorflow", True, 4, {}, 4),
        ("tensorflow", True, 4, {"CUDA_VISIBLE_DEVICES": "0,1"}, 2),
        # A build for the CPU on a machine with GPUs.
        ("tensorflow", False, 4, {}, 1),
        ("torch", True, 0, {}, 1),
        ("jax", True, 4, {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, 4),
        ("jax", False, 4, {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, 2),
        ("torch", False, 0, {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, 1),
    ],
)
def test_num_local_devices(monkeypatch, backend, has_cuda, gpus, environ, expected):
    monkeypatch.setattr(machine, "can_use_gpus", lambda backend, environ: has_cuda)
    monkeypatch.setattr(machine, "num_installed_gpus", lambda: gpus)
    assert machine.num_local_devices(backend, environ) == expected
