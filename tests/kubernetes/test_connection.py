"""What happens when the cluster says no, says nothing, or stops in the middle: the same on both ways to it."""

import contextlib
import os
import shutil

import pytest

from tests.kubernetes.control_plane import ControlPlane, Refusal
from tests.kubernetes.jobs import job
from tests.kubernetes.scripted_kubelet import ScriptedKubelet
from tests.kubernetes.test_run_command import WAYS
from trireme.errors import ClusterRefused, ClusterUnreachable, UsageError
from trireme.launch.kubernetes.connection import connect
from trireme.launch.kubernetes.objects import RunObjects
from trireme.launch.kubernetes.pod_logs import PodLogs
from trireme.launch.kubernetes.render import render


def runs(pod):
    pod.run()


@contextlib.contextmanager
def reached(folder, way, life=runs):
    """A control plane and a connection to it."""
    (folder / "bin").mkdir()
    if way == "kubectl":
        (folder / "bin" / "kubectl").symlink_to(shutil.which("kubectl"))
    with ControlPlane(ScriptedKubelet(life)) as plane:
        (folder / "kubeconfig").write_text(plane.kubeconfig())
        environ = os.environ | {"KUBECONFIG": str(folder / "kubeconfig"), "PATH": str(folder / "bin")}
        with connect(environ) as connection:
            yield plane, connection


def refusing(wanted_method, wanted_path, error):
    def refuse(method, path):
        if method == wanted_method and wanted_path in path:
            raise error

    return refuse


@pytest.mark.parametrize("way", WAYS)
def test_a_connection(tmp_path, way):
    with reached(tmp_path, way) as (plane, connection):
        assert connection.namespace == "research"
        run = RunObjects(connection, "train")
        run.create(render(job(workers=2)))
        assert [pod.index for pod in run.observe().pods] == [0, 1]

        plane.refuse = refusing("POST", "/jobs", Refusal(403, "jobs.batch is forbidden: no rights"))
        with pytest.raises(ClusterRefused, match=r"\(403\): jobs.batch is forbidden: no rights") as error:
            RunObjects(connection, "other").create(render(job(name="other")))
        assert error.value.status == 403
        assert [one["metadata"]["name"] for one in plane.list("Service")] == ["train"], "half a run was left"

        plane.refuse = refusing("GET", "/pods", Refusal(503, "overloaded"))
        with pytest.raises(ClusterUnreachable, match=r"\(503\): overloaded"):
            run.observe()
        plane.refuse = refusing("GET", "/pods", ConnectionResetError())
        with pytest.raises(ClusterUnreachable):
            run.observe()
        plane.refuse = refusing("GET", "/nodes", Refusal(403, "nodes is forbidden"))
        assert run.unready_nodes() is None

        with pytest.raises(UsageError, match="there is a run train in the namespace research already"):
            run.create(render(job(workers=2)))
        assert len(plane.list("Job")) == 1
        # Somebody else was quicker: only one of them gets the name.
        plane.refuse = refusing("POST", "/services", Refusal(409, "already exists"))
        with pytest.raises(UsageError, match="there is a run third"):
            RunObjects(connection, "third").create(render(job(name="third")))


@pytest.mark.parametrize("way", WAYS)
def test_a_log_that_breaks_off_is_read_on_where_it_stopped(tmp_path, way):
    def life(pod):
        pod.run()
        for number in range(200):
            pod.say(f"line {number}")
        pod.end(0)

    breaks = iter((3, 90, 150))
    with reached(tmp_path, way, life) as (plane, connection):
        at = next(breaks)

        def refuse(method, path):
            nonlocal at
            if method == "LINE" and path.endswith(f"/{at}"):
                at = next(breaks, 0)
                raise ConnectionResetError

        plane.refuse = refuse
        run = RunObjects(connection, "train")
        run.create(render(job()))
        shown = []
        logs = PodLogs(run, str(tmp_path), shown.append)
        while not (state := run.observe()).outcome or not logs._readers:
            logs.update(state)
        assert logs.finish(30.0) == []
    lines = "".join(f"line {number}\n" for number in range(200)).encode()
    assert (tmp_path / "worker-0.log").read_bytes() == b"".join(shown) == lines
    assert at == 0


def test_a_field_that_kubernetes_does_not_know_is_refused_and_nothing_is_left(tmp_path):
    with reached(tmp_path, "client") as (plane, connection):
        objects = render(job())
        objects[-1]["spec"]["podFailurePolicies"] = {}
        with pytest.raises(ClusterRefused, match="podFailurePolicies"):
            RunObjects(connection, "train").create(objects)
        assert [plane.list(kind) for kind in ("Service", "ConfigMap", "Job")] == [[], [], []]


def test_a_jobset_is_created_stopped_and_deleted(tmp_path):
    with reached(tmp_path, "client") as (plane, connection):
        run = RunObjects(connection, "train")
        with pytest.raises(ClusterRefused, match="could not find the requested resource"):
            run.create(render(job(jobset=True, workers=2)))
        plane.has_jobsets = True
        run.create(render(job(jobset=True, workers=2)))
        (config_map,) = plane.list("ConfigMap")
        assert config_map["metadata"]["ownerReferences"][0]["kind"] == "JobSet"
        assert [pod.phase for pod in run.observe().pods] == ["Missing", "Missing"]
        assert run.stop() == ["jobset/train"]
        assert plane.get("JobSet", "train")["spec"]["suspend"] is True
        assert run.delete() == ["JobSet train", "ConfigMap train-source"]
        assert plane.list("ConfigMap") == []


@pytest.mark.parametrize("way", WAYS)
def test_no_cluster(tmp_path, way):
    (tmp_path / "bin").mkdir()
    if way == "kubectl":
        (tmp_path / "bin" / "kubectl").symlink_to(shutil.which("kubectl"))
    environ = os.environ | {
        "KUBECONFIG": str(tmp_path / "none"),
        "HOME": str(tmp_path),
        "PATH": str(tmp_path / "bin"),
    }
    with pytest.raises(ClusterUnreachable), connect(environ) as connection:
        RunObjects(connection, "train").observe()
