"""One parameter server and two workers in pods: keys in Secrets, a server that is killed, and the end of them all."""

import base64
import json
import pathlib

import numpy as np
import pytest

from tests.system.machine import machine

SCRIPT = pathlib.Path(__file__).with_name("servers_in_pods.py")
OVERLAY = """\
kind: Job
spec: {template: {spec: {containers: [{name: main, env: [{name: TRIREME_SNAPSHOT_INTERVAL_S, value: "0.2"}]}]}}}
"""


@pytest.mark.timeout(300)  # three starts of a framework at once, then another one
def test_a_run_whose_server_is_killed(tmp_path):
    (tmp_path / "overlay.yaml").write_text(OVERLAY)
    with machine(tmp_path) as at:
        line = ["run", "--on=kubernetes", "--name=ps", "--image=local/ps:1", "--workers=2", "--servers=1"]
        line += ["--backend=torch", "--memory=2Gi", "--backup-claim=shared", "--log-dir=logs"]
        line += ["--overlay=overlay.yaml", str(SCRIPT), "/trireme/backup"]
        said = []
        with at.start(*line) as process:
            for text in process.stdout:
                said.append(text)
                if text == "epoch 1 begins\n":
                    break
            (server,) = at.plane.list("Pod", {"trireme.dev/role": "server"})
            at.kubelet.kill(server["metadata"]["name"], 9)
            (at.claim / "go-on").touch()
            said += process.stdout
        everything = "".join(said)
        assert process.returncode == 0, everything + at.log("server-0")
        phases = [pod["status"]["phase"] for pod in at.plane.list("Pod", {"trireme.dev/role": "server"})]
        # The other is about to end, or has.
        assert len(phases) == 2 and phases.count("Failed") == 1, phases
        assert "came back from a snapshot" in at.log("server-0")
        result = json.loads((at.claim / "result.json").read_text())
        assert result["rows"] == [320.0] * 4
        assert result["losses"][-1] < 0.1 * result["losses"][0]
        np.testing.assert_allclose(result["weights"], 1.0, atol=0.2)
        # The servers end with the workers, by themselves.
        at.kubelet.join()
        at.plane.reconcile()
        conditions = at.plane.get("Job", "ps-server")["status"]["conditions"]
        assert [one["type"] for one in conditions] == ["Complete"], at.log("server-0")
        secrets = at.plane.list("Secret")
        assert {item["metadata"]["name"] for item in secrets} == {"ps-server-keys", "ps-worker-keys"}
        values = [base64.b64decode(text).decode() for item in secrets for text in item["data"].values()]
        logs = "".join(at.log(rank) for rank in ("worker-0", "worker-1", "server-0"))
        others = json.dumps([at.plane.list(kind) for kind in ("Job", "Pod", "ConfigMap")])
        assert not any(value in everything + logs + others for value in values)
