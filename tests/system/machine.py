"""A machine on which pods run as containers, with a stand-in for the control plane, and a person who uses it."""

import contextlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

from tests.kubernetes.control_plane import ControlPlane
from tests.system.network import Network
from tests.system.runc_kubelet import RuncKubelet


class Machine:
    """A machine on which pods run, and the folder of a person who starts them there."""

    def __init__(
        self, folder: pathlib.Path, plane: ControlPlane, kubelet: RuncKubelet, claim: pathlib.Path
    ) -> None:
        self.folder, self.plane, self.kubelet, self.claim = folder, plane, kubelet, claim
        (folder / "kubeconfig").write_text(plane.kubeconfig())
        self.environ = os.environ | {"KUBECONFIG": str(folder / "kubeconfig")}

    def start(self, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "trireme", *arguments],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def log(self, rank: str) -> str:
        return (self.folder / "logs" / f"{rank}.log").read_text()


@contextlib.contextmanager
def machine(folder: pathlib.Path) -> Iterator[Machine]:
    # Containers run as another user, who has to reach the claim and the code.
    os.chmod(folder, 0o755)
    claim = folder / "claim"
    claim.mkdir()
    claim.chmod(0o777)
    with Network() as network:
        kubelet = RuncKubelet(folder, network, {"shared": claim})
        try:
            with ControlPlane(kubelet, backoff_s=0.5) as plane:
                yield Machine(folder, plane, kubelet, claim)
        finally:
            kubelet.join()
