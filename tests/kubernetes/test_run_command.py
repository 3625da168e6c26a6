"""`trireme run --on kubernetes` and the commands about a run, as a person types them, against a stand-in cluster."""

import base64
import contextlib
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading

import pytest

from tests.kubernetes.control_plane import ControlPlane, Refusal
from tests.kubernetes.scripted_kubelet import Pod, ScriptedKubelet

LEAST = ("--on", "kubernetes", "--name", "train", "--image", "registry.example/train:1")
# Without kubectl on the PATH, the package `kubernetes` is used.
WAYS = ("kubectl", "client") if shutil.which("kubectl") else ("client",)


class Desk:
    """A person's working folder, from which a cluster can be reached."""

    def __init__(self, folder: pathlib.Path, plane: ControlPlane, way: str) -> None:
        self.folder, self.plane = folder, plane
        (folder / "kubeconfig").write_text(plane.kubeconfig())
        (folder / "train.py").write_text("print('training')\n")
        (folder / "bin").mkdir()
        if way == "kubectl":
            (folder / "bin" / "kubectl").symlink_to(shutil.which("kubectl"))
        self.environ = os.environ | {"KUBECONFIG": str(folder / "kubeconfig"), "PATH": str(folder / "bin")}

    def start(self, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "trireme", *arguments],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        with self.start(*arguments) as process:
            out, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)

    def log(self, name: str) -> str:
        return (self.folder / "logs" / name).read_text()


@contextlib.contextmanager
def desk(folder, life, way="client"):
    with ControlPlane(ScriptedKubelet(life)) as plane:
        yield Desk(folder, plane, way)


def trains(pod: Pod) -> None:
    """A pod that trains three steps."""
    pod.run()
    pod.say(f"{pod.role} {pod.index}")
    for step in range(3):
        pod.say("")
        pod.say(f"trireme: progress generation={pod.attempt} step={step} rows_per_s=128.0")
    pod.say("done")
    pod.end(0)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_from_its_creation_to_its_end(tmp_path, way):
    with desk(tmp_path, trains, way) as at:
        done = at.run("run", *LEAST, "--workers", "3", "--log-dir", "logs", "train.py", "--epochs", "2")
        assert done.returncode == 0, done.stderr
        # Worker 0's output as its script wrote it, and nothing else.
        assert done.stdout == "worker 0\ndone\n"
        assert [at.log(f"worker-{index}.log") for index in range(3)] == [
            f"worker {index}\ndone\n" for index in range(3)
        ]
        assert "worker 2: Succeeded on node-2" in done.stderr
        assert at.plane.authorizations == ({None} if way == "kubectl" else {"Bearer secret"})
        job, service = at.plane.get("Job", "train"), at.plane.get("Service", "train")
        assert job["metadata"]["namespace"] == "research"
        assert service["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
        assert at.plane.get("ConfigMap", "train-source")["data"]["train.py"] == "print('training')\n"


def test_rm_deletes_it_afterwards(tmp_path):
    with desk(tmp_path, trains) as at:
        assert at.run("run", *LEAST, "--rm", "train.py").returncode == 0
        assert [at.plane.list(kind) for kind in ("Job", "Service", "ConfigMap", "Pod")] == [[]] * 4


@pytest.mark.parametrize("may_list_secrets", [True, False])
def test_servers_and_workers_get_keys_that_nobody_sees(tmp_path, may_list_secrets):
    keys, owners = {}, {}

    def life(pod: Pod) -> None:
        (source,) = pod.item["spec"]["containers"][0]["envFrom"]
        # Created before the pods that refer to it.
        keys[pod.role] = pod.plane.get("Secret", source["secretRef"]["name"])["data"]
        pod.run()
        pod.end(0)

    def refuse(method, path):
        if path.endswith("/secrets") and method == "GET" and not may_list_secrets:
            raise Refusal(403, "secrets is forbidden")
        for secret in at.plane.list("Secret") if path.endswith("/pods") else ():
            owners[secret["metadata"]["name"]] = secret["metadata"].get("ownerReferences")

    with desk(tmp_path, life) as at:
        at.plane.refuse = refuse
        done = at.run("run", *LEAST, "--workers", "2", "--servers", "1", "--rm", "train.py")
        assert done.returncode == 0, done.stderr
        # They belong to the workers' Job, so they go with it.
        assert at.plane.list("Secret") == []
    assert {name: owner[0]["name"] for name, owner in owners.items()} == dict.fromkeys(
        ("train-worker-keys", "train-server-keys"), "train-worker"
    )
    variables = {role: set(map(str.lower, data)) for role, data in keys.items()}
    assert variables == {
        "server": {"trireme_server_secret_key", "trireme_worker_public_key"},
        "worker": {"trireme_server_public_key", "trireme_worker_public_key", "trireme_worker_secret_key"},
    }
    values = [base64.b64decode(text).decode() for data in keys.values() for text in data.values()]
    assert not any(value in done.stdout + done.stderr for value in values)


def test_servers_whose_workers_have_failed_are_told_to_end(tmp_path):
    told = []

    def life(pod: Pod) -> None:
        pod.run()
        if pod.role == "worker":
            pod.end(64, "UsageError: no data")
        else:
            told.append(pod.told_to_end.wait(50))
            pod.end(143)

    with desk(tmp_path, life) as at:
        done = at.run("run", *LEAST, "--servers", "1", "train.py")
        assert done.returncode == 64
        assert "UsageError: no data" in done.stderr and "not read to the end" not in done.stderr
        assert at.plane.get("Job", "train-server")["spec"]["suspend"] is True
        assert told == [True]
        # How the run ended is still known.
        assert "worker 0" in at.run("status", "train").stdout


def test_the_first_failure_is_the_headline_and_its_code_the_end(tmp_path):
    both_run = threading.Barrier(2)

    def life(pod: Pod) -> None:
        pod.run()
        both_run.wait(30)
        if pod.index == 1:
            pod.say("Traceback: no such file")
            pod.end(64, "Traceback: no such file\nUsageError: train.csv is missing")
        else:
            pod.told_to_end.wait(30)
            pod.end(143)

    with desk(tmp_path, life) as at:
        done = at.run("run", *LEAST, "--workers", "2", "--log-dir", "logs", "train.py")
    assert done.returncode == 64
    assert "trireme: worker 1 of 2 (pod train-1-" in done.stderr
    assert (
        " on node-1) exited with code 64\n    Traceback: no such file\n    UsageError: train.csv is missing"
        in done.stderr
    )
    assert "PodFailurePolicy" in done.stderr
    assert at.log("worker-1.log") == "Traceback: no such file\n"


def test_a_rank_that_is_replaced_goes_on_in_its_log(tmp_path):
    first_has_ended = threading.Event()

    def life(pod: Pod) -> None:
        pod.run()
        pod.say(f"attempt {pod.attempt}")
        if (pod.index, pod.attempt) == (0, 0):
            pod.end(137)
            first_has_ended.set()
        else:
            first_has_ended.wait(30)
            pod.end(0)

    with desk(tmp_path, life) as at:
        done = at.run("run", *LEAST, "--workers", "2", "--log-dir", "logs", "train.py")
        assert done.returncode == 0, done.stderr
        assert done.stdout == at.log("worker-0.log") == "attempt 0\nattempt 1\n"
        status = at.run("status", "train")
        assert status.returncode == 0
        row = next(line for line in status.stdout.splitlines() if line.startswith("worker 0"))
        assert row.split()[2:5] == ["node-0", "Succeeded", "1"]
        assert at.run("logs", "train").stdout == "attempt 0\nattempt 1\n"
        assert at.run("logs", "train", "--rank", "worker-1").stdout == "attempt 0\n"


def test_a_partial_start_tells_who_is_missing_and_why(tmp_path):
    why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    said = threading.Event()

    def life(pod: Pod) -> None:
        if pod.index < 2:
            pod.run()
        else:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
            pod.plane.patch("Pod", pod.name, {"status": {"conditions": [condition]}})
            said.wait(30)
        pod.end(0)

    with desk(tmp_path, life) as at:
        process = at.start("run", *LEAST, "--workers", "4", "train.py")
        with process:
            for line in process.stderr:
                if "cannot start" in line:
                    assert line == f"trireme: workers 2, 3 cannot start: {why}\n"
                    said.set()
    assert process.returncode == 0 and said.is_set()


def test_ctrl_c_leaves_the_run_and_logs_follow_comes_back(tmp_path):
    may_end = threading.Event()

    def life(pod: Pod) -> None:
        pod.run()
        pod.say("first")
        may_end.wait(30)
        pod.say("last")
        pod.end(0)

    with desk(tmp_path, life) as at:
        with at.start("run", *LEAST, "train.py") as process:
            assert process.stdout.readline() == "first\n"
            process.send_signal(signal.SIGINT)
            assert "trireme logs train --follow" in process.stderr.read()
        assert process.returncode == 130
        status = at.run("status", "train")
        assert status.returncode == 0 and "Running" in status.stdout
        may_end.set()
        again = at.run("logs", "train", "--follow", "--log-dir", "logs")
        assert (again.returncode, again.stdout, at.log("worker-0.log")) == (
            0,
            "first\nlast\n",
            "first\nlast\n",
        )


def test_a_watch_goes_on_when_the_cluster_does_not_answer_and_ends_when_it_says_no(tmp_path):
    answers = [Refusal(503, "starting"), Refusal(429, "too many requests"), ConnectionResetError()]

    def refuse(method, path):
        if path.endswith("/pods") and answers:
            raise answers.pop(0)

    def life(pod: Pod) -> None:
        pod.run()
        while answers:
            pod.told_to_end.wait(0.05)
        pod.plane.refuse = lambda method, path: no(path)

    def no(path):
        if path.endswith("/pods"):
            raise Refusal(401, "Unauthorized")

    with desk(tmp_path, life) as at:
        at.plane.refuse = refuse
        done = at.run("run", *LEAST, "train.py")
    assert done.returncode == 1 and answers == []
    assert "(503): starting; the run goes on without us, asking again" in done.stderr
    assert "trireme logs train --follow" in done.stderr
    assert "(401): Unauthorized" in done.stderr


def test_stop_lets_the_pods_save_and_delete_removes_everything(tmp_path):
    saved = []

    def life(pod: Pod) -> None:
        pod.run()
        pod.say("ready")
        assert pod.told_to_end.wait(30)
        saved.append(pod.index)
        pod.end(143)

    with desk(tmp_path, life) as at:
        with at.start("run", *LEAST, "train.py") as process:
            assert process.stdout.readline() == "ready\n"
            stopped = at.run("stop", "train")
            assert (stopped.returncode, stopped.stderr) == (0, "")
            assert "the run train was stopped" in process.stderr.read()
        assert (process.returncode, saved) == (143, [0])
        deleted = at.run("delete", "train")
        assert deleted.stdout.split("\n") == [
            "deleted Job train",
            "deleted Service train",
            "deleted ConfigMap train-source",
            "",
        ]
        assert at.run("delete", "train").returncode == 64
        assert "there is no run train in the namespace research" in at.run("status", "train").stderr


def test_a_terminal_shows_the_table_below_worker_0s_output(tmp_path):
    seen = threading.Event()

    def life(pod: Pod) -> None:
        pod.run()
        if pod.index == 0:
            pod.say("epoch 1")
            pod.say("1/9 =>\r2/9 ==>")
        pod.say("")
        pod.say("trireme: progress generation=0 step=7 rows_per_s=1234.0")
        seen.wait(30)
        pod.say("\r9/9 done")
        pod.end(0)

    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (30, 120))
    with desk(tmp_path, life) as at, os.fdopen(ours, "rb", buffering=0) as terminal:
        command = [sys.executable, "-m", "trireme", "run", *LEAST, "--workers", "2", "train.py"]
        process = subprocess.Popen(command, cwd=tmp_path, env=at.environ, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = b""
        with process, contextlib.suppress(OSError):  # what a terminal's other end says at its end
            while piece := terminal.read(4096):
                shown += piece
                if b"1,234" in shown and b"2/9 ==>" in shown:
                    seen.set()
    assert process.returncode == 0 and seen.is_set()
    text = shown.decode()
    assert re.search(r"worker 1 +node-1 +\S*Running\S* +0 +0 +7 +1,234", text)
    assert text.index("epoch 1") < text.rindex("worker 1")
    assert "9/9 done" in text and "trireme: progress" not in text
