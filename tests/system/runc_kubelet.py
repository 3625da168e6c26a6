"""A kubelet that runs pods as real containers by `runc`, each with namespaces, an address and limits of its own.

An image is not needed: the interpreter and its packages are mounted from this machine, read-only.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
from typing import Any

from tests.kubernetes.control_plane import ControlPlane
from tests.system.network import Network

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTROL_GROUPS = pathlib.Path("/sys/fs/cgroup")
USER = 1000
# What an interpreter needs of the machine, and its packages; mounted where it lies.
IMAGE = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/etc/ssl",
    "/etc/passwd",
    "/etc/nsswitch.conf",
    sys.base_prefix,
    sys.prefix,
    str(ROOT),
)
SHM_BYTES = 64 * 2**20
LAST_WORDS_BYTES = 2048
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

Object = dict[str, Any]


class RuncKubelet:
    """One machine that takes every pod.

    Args:
        folder: for bundles and volumes.
        network: where pods get their addresses. Their names are known there before they are ready, as with
            the rendered Service.
        claims: by the name of a PersistentVolumeClaim, the folder it stands for.
    """

    def __init__(self, folder: pathlib.Path, network: Network, claims: dict[str, pathlib.Path]) -> None:
        self._folder, self._network, self._claims = folder, network, claims
        self._state = folder / "runc"
        self._groups = f"trireme-{os.getpid()}-{folder.name}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []

    def start(self, plane: ControlPlane, pod: Object) -> None:
        thread = threading.Thread(target=self._run, args=(plane, pod), name=pod["metadata"]["name"])
        self._threads.append(thread)
        thread.start()

    def stop(self, plane: ControlPlane, pod: Object) -> None:
        """SIGTERM to process 1, and SIGKILL once the grace period is over."""
        name, grace_s = pod["metadata"]["name"], pod["spec"]["terminationGracePeriodSeconds"]
        process = self._processes.get(name)
        if process is None or process.poll() is not None:
            return
        self.kill(name, signal.SIGTERM)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill(name, signal.SIGKILL)

    def kill(self, name: str, signum: int) -> None:
        """Sends a signal to process 1 of a pod."""
        self._runc("kill", name, str(int(signum)))

    def join(self) -> None:
        """Waits until all pods have ended, and leaves nothing of them."""
        for thread in self._threads:
            thread.join()
        for folder in CONTROL_GROUPS.glob(f"**/{self._groups}"):
            folder.rmdir()

    def _runc(self, *arguments: str) -> None:
        # A container may have ended by itself just before.
        subprocess.run(["runc", "--root", str(self._state), *arguments], capture_output=True)

    def _group(self, host: str) -> str:
        return f"{self._groups}/{host}"

    def _run(self, plane: ControlPlane, pod: Object) -> None:
        name = pod["metadata"]["name"]
        host = self._add_host(pod)
        bundle = self._folder / "bundles" / name
        (bundle / "rootfs").mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(self._config(plane, pod, bundle, host)))
        command = ["runc", "--root", str(self._state), "run", "--keep", "--bundle", str(bundle), name]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._processes[name] = process
        plane.pod_runs(name, "this-machine")
        last = b""
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                plane.logs[name].write(line)
                last = (last + line)[-LAST_WORDS_BYTES:]
        code = process.wait()
        reason = {"reason": "OOMKilled"} if _was_out_of_memory(self._group(host)) else {}
        self._runc("delete", name)
        plane.pod_ended(name, code, last.decode(errors="replace") if code else "", **reason)

    def _add_host(self, pod: Object) -> str:
        """A network namespace for the pod; its name now leads there."""
        spec = pod["spec"]
        host = f"{pod['metadata']['name']}"
        self._network.add(host, f"{spec['hostname']}.{spec['subdomain']}", spec["hostname"])
        return host

    def _config(self, plane: ControlPlane, pod: Object, bundle: pathlib.Path, host: str) -> Object:
        """The container as `runc` wants it described, from the pod as Kubernetes describes it."""
        spec = pod["spec"]
        (container,) = spec["containers"]
        arguments = [*container["command"], *container.get("args", [])]
        capabilities = {kind: [] for kind in ("bounding", "effective", "permitted")}
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {"uid": USER, "gid": USER},
                "args": [_unescaped(word) for word in arguments],
                "env": [*_image_environment(), *self._environment(plane, pod, container, host)],
                "cwd": container.get("workingDir", "/tmp"),
                "capabilities": capabilities,
                "noNewPrivileges": not container["securityContext"]["allowPrivilegeEscalation"],
            },
            "root": {"path": "rootfs", "readonly": False},
            "hostname": spec["hostname"],
            "mounts": [*_image_mounts(), *self._mounts(plane, pod, container, bundle)],
            "linux": {
                "cgroupsPath": f"/{self._group(host)}",
                "namespaces": [
                    {"type": "pid"},
                    {"type": "ipc"},
                    {"type": "uts"},
                    {"type": "mount"},
                    {"type": "network", "path": self._network.path(host)},
                ],
                "resources": _resources(container),
            },
        }

    def _environment(self, plane: ControlPlane, pod: Object, container: Object, host: str) -> list[str]:
        fields = {
            "metadata.name": pod["metadata"]["name"],
            "metadata.uid": pod["metadata"]["uid"],
            "status.podIP": self._network.addresses[host],
            "spec.nodeName": "this-machine",
            **{f"metadata.labels['{key}']": value for key, value in pod["metadata"]["labels"].items()},
        }
        entries = []
        for source in container.get("envFrom", ()):
            secret = plane.get("Secret", source["secretRef"]["name"])["data"]
            entries += [f"{name}={base64.b64decode(value).decode()}" for name, value in secret.items()]
        for entry in container["env"]:
            value = (
                _unescaped(entry["value"])
                if "value" in entry
                else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            )
            entries.append(f"{entry['name']}={value}")
        return entries

    def _mounts(
        self, plane: ControlPlane, pod: Object, container: Object, bundle: pathlib.Path
    ) -> list[Object]:
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        mounts = [_bind(str(self._network.hosts_file), "/etc/hosts")]
        memory = {"size": SHM_BYTES}
        for mount in container.get("volumeMounts", ()):
            volume, path = volumes[mount["name"]], mount["mountPath"]
            if path == "/dev/shm":
                memory["size"] = _bytes(volume["emptyDir"]["sizeLimit"])
            elif "configMap" in volume:
                folder = bundle / mount["name"]
                folder.mkdir()
                for key, text in plane.get("ConfigMap", volume["configMap"]["name"])["data"].items():
                    (folder / key).write_text(text)
                mounts.append(_bind(str(folder), path))
            else:
                claim = volume["persistentVolumeClaim"]["claimName"]
                mounts.append(_bind(str(self._claims[claim]), path, "rw"))
        options = ["nosuid", "noexec", "nodev", "mode=1777", f"size={memory['size']}"]
        return [*mounts, {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": options}]


def _was_out_of_memory(group: str) -> bool:
    """Whether the kernel killed a process of the group: version 1 and version 2 count it in different files."""
    files = (
        CONTROL_GROUPS / "memory" / group / "memory.oom_control",
        CONTROL_GROUPS / group / "memory.events",
    )
    counts = [
        re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE) for file in files if file.exists()
    ]
    return any(count is not None and int(count[1]) > 0 for count in counts)


def _resources(container: Object) -> Object:
    limit = container.get("resources", {}).get("limits", {}).get("memory")
    # Everything is denied but what every container has.
    devices = [{"allow": False, "access": "rwm"}]
    return {"devices": devices, **({"memory": {"limit": _bytes(limit)}} if limit else {})}


def _image_environment() -> list[str]:
    """What an image's own ENV would say."""
    inherited = ("PYTHONPATH", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    return [
        f"PATH={pathlib.Path(sys.prefix, 'bin')}:/usr/bin:/bin",
        "HOME=/tmp",
        *(f"{name}={os.environ[name]}" for name in inherited if name in os.environ),
    ]


def _image_mounts() -> list[Object]:
    python_path = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isdir(path)]
    folders = [path for path in dict.fromkeys((*IMAGE, *python_path)) if os.path.exists(path)]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {
            "destination": "/sys",
            "type": "sysfs",
            "source": "sysfs",
            "options": ["nosuid", "noexec", "nodev", "ro"],
        },
        {
            "destination": "/tmp",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "nodev", "mode=1777"],
        },
        *(_bind(path, path) for path in folders),
    ]


def _bind(source: str, destination: str, access: str = "ro") -> Object:
    return {"destination": destination, "type": "bind", "source": source, "options": ["rbind", access]}


def _unescaped(text: str) -> str:
    assert not re.search(r"(?<!\$)(\$\$)*\$\(", text), f"{text!r} would name a variable"
    return text.replace("$$", "$")


def _bytes(quantity: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]i)?", quantity)
    assert match, quantity
    return int(match[1]) * UNITS.get(match[2] or "", 1)
