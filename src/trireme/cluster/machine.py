"""What this machine offers a run: CPU cores, devices, and the Keras backend; found without any framework."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
KERAS_BACKEND = "KERAS_BACKEND"
KERAS_HOME = "KERAS_HOME"
JAX_PLATFORMS = "JAX_PLATFORMS"
JAX_NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
XLA_FLAGS = "XLA_FLAGS"

DEFAULT_BACKEND = "tensorflow"
_ASK_TIMEOUT_S = 20.0
_NVIDIA_DEVICE = re.compile(r"nvidia[0-9]+")
_VIRTUAL_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_CUDA_OF_TORCH = re.compile(r"^cuda\b[^=]*=\s*(?!None)\S", re.MULTILINE)


def num_cpu_cores() -> int:
    """How many cores this process may use at once, at least 1: its affinity, within its container's quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of CPU time that the control group of this process gets, or None without a limit.

    Args:
        root: the file system that holds `proc` and `sys`.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quotas += [_quota_v2(folder) for folder in _upwards(root / "sys/fs/cgroup", path)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_v1(folder) for folder in _upwards(root / "sys/fs/cgroup" / controllers, path)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _upwards(mount: Path, path: str) -> list[Path]:
    """A control group's folder and all that contain it: each of them may hold a limit. In a container the
    path is often the host's and does not exist; the container's own group is then the mount itself."""
    folder = mount / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))]


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def num_gpus(environ: Mapping[str, str], installed: int | None = None) -> int:
    """How many NVIDIA GPUs a process with this environment can see.

    Args:
        environ: its `CUDA_VISIBLE_DEVICES` is read as CUDA does: the first entry that names no device
            hides all that follow.
        installed: the number of GPUs in the machine; looked up when not given.
    """
    installed = num_installed_gpus() if installed is None else installed
    visible = environ.get(CUDA_VISIBLE_DEVICES)
    if visible is None or installed == 0:
        return installed
    count = 0
    for entry in visible.split(","):
        if not _names_a_device(entry.strip(), installed):
            break
        count += 1
    return count


def _names_a_device(entry: str, installed: int) -> bool:
    if entry.isascii() and entry.isdigit():
        return int(entry) < installed
    return entry.startswith(("GPU-", "MIG-"))


def num_installed_gpus(device_names: Iterable[str] | None = None) -> int:
    """How many NVIDIA GPUs this machine, or this container, has: its device files, else what nvidia-smi
    lists (under WSL there are no device files)."""
    names = os.listdir("/dev") if device_names is None else device_names
    count = sum(_NVIDIA_DEVICE.fullmatch(name) is not None for name in names)
    return count if count or device_names is not None else _listed_by_nvidia_smi()


def _listed_by_nvidia_smi() -> int:
    command = shutil.which("nvidia-smi")
    if command is None:
        return 0
    import subprocess

    try:
        listed = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return (
        sum(line.startswith("GPU ") for line in listed.stdout.splitlines()) if listed.returncode == 0 else 0
    )


def keras_backend(environ: Mapping[str, str]) -> str:
    """The backend that `import keras` will choose: `KERAS_BACKEND`, else `keras.json`, else tensorflow."""
    return environ.get(KERAS_BACKEND) or configured_backend(environ) or DEFAULT_BACKEND


def keras_configuration(environ: Mapping[str, str]) -> Path:
    """Where Keras looks for its configuration file."""
    home = Path(environ.get("HOME") or Path.home())
    folder = Path(environ.get(KERAS_HOME) or (home if os.access(home, os.W_OK) else Path("/tmp")) / ".keras")
    return folder.expanduser() / "keras.json"


def configured_backend(environ: Mapping[str, str]) -> str | None:
    """The backend in Keras' configuration file, which Keras too passes over when it is damaged."""
    try:
        config = json.loads(keras_configuration(environ).read_text())
    except (OSError, ValueError):
        return None
    backend = config.get("backend") if isinstance(config, dict) else None
    return backend if isinstance(backend, str) else None


def is_installed(backend: str) -> bool:
    """Whether the backend's framework can be imported; nothing is imported to find out."""
    return find_spec(backend) is not None


def can_use_gpus(backend: str, environ: Mapping[str, str]) -> bool:
    """Whether the installed build of the backend's framework has CUDA support and is allowed to use it."""
    if backend == "tensorflow":
        return is_installed(backend) and not _is_distributed_as("tensorflow-cpu")
    if backend == "torch":
        return _torch_has_cuda()
    if backend == "jax":
        platforms = environ.get(JAX_PLATFORMS, "")
        allowed = not platforms or any(name in platforms.split(",") for name in ("cuda", "gpu"))
        return allowed and any(is_installed(f"jax_cuda{version}_plugin") for version in range(12, 16))
    return False


def _is_distributed_as(name: str) -> bool:
    # Slow to import, and every `import trireme` comes through this module.
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _torch_has_cuda() -> bool:
    """Whether PyTorch's own version file names a CUDA version."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        return _CUDA_OF_TORCH.search((Path(spec.origin).parent / "version.py").read_text()) is not None
    except OSError:
        return False


def num_local_devices(backend: str, environ: Mapping[str, str]) -> int:
    """How many devices of this machine `MirroredStrategy()` uses when nobody says how many.

    The GPUs that the installed backend can use; without one, the CPU is one device, or as many as JAX is
    told to divide it into.
    """
    gpus = num_gpus(environ) if can_use_gpus(backend, environ) else 0
    if gpus == 0 and backend == "jax":
        return num_virtual_devices(environ)
    return max(gpus, 1)


def num_virtual_devices(environ: Mapping[str, str]) -> int:
    """Into how many devices JAX divides the CPU under this environment. At least 1."""
    told = environ.get(JAX_NUM_CPU_DEVICES, "")
    if told.isascii() and told.isdigit() and int(told) > 0:
        return int(told)
    flags = _VIRTUAL_DEVICES.findall(environ.get(XLA_FLAGS, ""))
    return max(int(flags[-1]), 1) if flags else 1
