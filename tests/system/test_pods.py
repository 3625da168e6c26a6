"""Runs of `trireme run --on kubernetes` whose pods are real containers; the control plane is a stand-in.

Here nothing trains: what a pod is given, and how it ends.
"""

import json
import subprocess
import sys

import pytest

from tests.system.machine import machine

# In place of the agent: a script that looks around, as process 1.
OVERLAY = """\
kind: Job
spec: {template: {spec: {containers: [{name: main, command: [python, /trireme/source/look.py]}]}}}
"""
LOOK = """\
import json, os, signal, socket, sys, time
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
found = {
    "pid": os.getpid(), "uid": os.getuid(), "host": os.uname().nodename, "argv": sys.argv[1:],
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": status["NoNewPrivs"], "index": os.environ["JOB_COMPLETION_INDEX"],
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "address": socket.gethostbyname(f"look-{os.environ['JOB_COMPLETION_INDEX']}.look"),
    "pod_ip": os.environ["TRIREME_POD_IP"], "pod": os.environ["TRIREME_POD"],
}
try:
    open("/trireme/source/other", "w")
except OSError as error:
    found["source"] = error.strerror
server = socket.create_server(("", 29400)) if found["index"] == "0" else None
def ended(signum, frame):
    print("saving", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, ended)
print(json.dumps(found), flush=True)
if server is None:
    # The other pod may not be listening, and its name may not be known.
    while True:
        try:
            socket.create_connection(("look-0.look", 29400), 5).close()
            break
        except OSError:
            time.sleep(0.05)
else:
    server.accept()
if "stay" in sys.argv:
    print("staying", flush=True)
    signal.pause()
if "eat" in sys.argv:
    eaten = bytearray(2**30)
    eaten[:] = b"x" * len(eaten)
"""


@pytest.fixture
def look(tmp_path):
    """A machine, and a command line that looks around in two pods."""
    (tmp_path / "look.py").write_text(LOOK)
    (tmp_path / "overlay.yaml").write_text(OVERLAY)
    line = ["run", "--on", "kubernetes", "--name", "look", "--image", "local/look:1", "--workers", "2"]
    line += ["--memory", "512Mi", "--grace", "5", "--overlay", "overlay.yaml", "--log-dir", "logs", "look.py"]
    with machine(tmp_path) as at:
        yield at, line


def test_what_a_pod_is_given(look):
    at, line = look
    with at.start(*line, "$(HOME)", "a b") as process:
        said = process.stdout.read()
    assert process.returncode == 0, said
    found = [json.loads(at.log(f"worker-{index}").splitlines()[0]) for index in range(2)]
    for index, one in enumerate(found):
        assert one["pid"] == 1 and one["host"] == f"look-{index}"
        assert one["uid"] == 1000 and one["capabilities"] == 0 and one["no_new_privileges"] == "1"
        assert one["argv"] == ["$(HOME)", "a b"]
        assert one["source"] == "Read-only file system"
        # Half of the memory limit, not the 64 MiB that containers have by themselves.
        assert one["shm"] == 256 * 2**20
        assert one["address"] == one["pod_ip"] and one["pod"].startswith(f"look-{index}-")
    assert found[0]["address"] != found[1]["address"]


def test_a_pod_that_is_told_to_stop_may_save_and_one_that_is_killed_is_replaced(look):
    at, line = look
    with at.start(*line, "stay") as process:
        for text in process.stdout:
            if text == "staying\n":
                break
        (first,) = [pod for pod in at.plane.list("Pod") if pod["metadata"]["name"].startswith("look-0-")]
        # The peer that waited for it is gone: so is the pod that waited, and both come back.
        at.kubelet.kill(first["metadata"]["name"], 9)
        for text in process.stdout:
            if "worker 0: Running" in text or text.startswith("{"):
                break
        stopped = subprocess.run(
            [sys.executable, "-m", "trireme", "stop", "look"], env=at.environ, timeout=60
        )
        assert stopped.returncode == 0
        said = process.stdout.read()
    assert process.returncode == 143, said
    assert "the run look was stopped" in said
    assert "saving" in at.log("worker-1")
    starts = [json.loads(text)["pod"] for text in at.log("worker-0").splitlines() if text.startswith("{")]
    assert len(set(starts)) == 2


def test_a_pod_that_eats_more_than_its_limit_is_killed(look):
    at, line = look
    with at.start(*line, "eat") as process:
        said = process.stdout.read()
    assert process.returncode == 137
    assert "ran out of memory and was killed (exit code 137): ask for more with --memory" in said
