"""What every rendered object must hold, whatever was asked for: what was measured on a real control plane."""

import base64
import os
import pathlib
import tempfile
import traceback
from fractions import Fraction

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.jobs import FOLDER, JOBS, job
from trireme.launch.kubernetes.keys import fresh_secrets
from trireme.launch.kubernetes.quantities import parse_quantity
from trireme.launch.kubernetes.render import header, render, secrets
from trireme.launch.kubernetes.source import Source
from trireme.launch.kubernetes.spec import KubernetesJob

LOST_NODE = {"unreachable", "not-ready"}


def job_specs(made: KubernetesJob) -> dict[str, dict]:
    """The spec of each Job by its role, also of the Jobs that a JobSet makes."""
    specs = [item["spec"] for item in render(made) if item["kind"] == "Job"]
    for item in render(made):
        if item["kind"] == "JobSet":
            specs += [one["template"]["spec"] for one in item["spec"]["replicatedJobs"]]
    return {spec["template"]["metadata"]["labels"]["trireme.dev/role"]: spec for spec in specs}


def container(spec: dict) -> dict:
    (only,) = spec["template"]["spec"]["containers"]
    return only


def environ(spec: dict) -> dict[str, str | None]:
    return {entry["name"]: entry.get("value") for entry in container(spec)["env"]}


@pytest.fixture(params=JOBS)
def made(request) -> KubernetesJob:
    return JOBS[request.param]


def test_one_pod_for_each_rank_and_never_two(made):
    for role, spec in job_specs(made).items():
        assert spec["completionMode"] == "Indexed"
        assert spec["completions"] == spec["parallelism"] == made.roles[role]
        assert spec["podReplacementPolicy"] == "Failed"
        assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_exit_codes_that_end_the_run_come_first(made):
    for spec in job_specs(made).values():
        first, second, *rest = spec["podFailurePolicy"]["rules"]
        assert first == {
            "action": "FailJob",
            "onExitCodes": {"containerName": "main", "operator": "In", "values": [64, 65, 78]},
        }
        assert second["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        if "backoffLimitPerIndex" in spec:
            assert spec["maxFailedIndexes"] == 0 and "backoffLimit" not in spec
            assert second["action"] == "Ignore"
            assert [rule["onExitCodes"]["values"] for rule in rest] == [[75]]
        else:
            assert spec["backoffLimit"] == 0 and made.jobset
            assert second["action"] == "FailJob" and not rest


def test_pods_have_no_token_no_links_and_no_side_car(made):
    for spec in job_specs(made).values():
        pod = spec["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert spec["template"]["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
        for each in [*pod["containers"], *pod.get("initContainers", [])]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }


def test_the_agent_is_process_1(made):
    for spec in job_specs(made).values():
        command = container(spec)["command"]
        assert command[:5] == ["python", "-m", "trireme", "worker", "--"]
        assert len(command) == (7 if made.source.is_module else 6)


def test_pods_leave_a_lost_node_after_a_minute(made):
    for spec in job_specs(made).values():
        seconds = {
            entry["key"].removeprefix("node.kubernetes.io/"): entry["tolerationSeconds"]
            for entry in spec["template"]["spec"]["tolerations"]
            if "tolerationSeconds" in entry
        }
        assert seconds == dict.fromkeys(LOST_NODE, 60)


def test_the_service_covers_all_roles_before_they_are_ready():
    services = [item for item in render(job(servers=2)) if item["kind"] == "Service"]
    (service,) = services
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    for spec in job_specs(job(servers=2)).values():
        assert service["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
        assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert {port["name"] for port in service["spec"]["ports"]} == {"rendezvous", "worker", "server"}


def test_who_has_no_gpu_sees_none():
    specs = job_specs(job(servers=1, gpus=2))
    assert container(specs["worker"])["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert "NVIDIA_VISIBLE_DEVICES" not in environ(specs["worker"])
    assert "limits" not in container(specs["server"]).get("resources", {})
    for spec in (specs["server"], job_specs(job())["worker"]):
        assert environ(spec)["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert environ(spec)["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("options", "workers_may", "servers_may"),
    [
        ({"gpus": 1}, True, False),
        ({"gpus": 0}, False, False),
        # The nodes that are selected may all have GPUs.
        ({"gpus": 1, "node_selector": ("pool=gpu",)}, True, True),
        ({"gpus": 0, "node_selector": ("pool=gpu",)}, False, False),
    ],
)
def test_who_may_go_to_nodes_with_gpus(options, workers_may, servers_may):
    specs = job_specs(job(servers=1, **options))
    keys = {
        role: [entry["key"] for entry in spec["template"]["spec"]["tolerations"]]
        for role, spec in specs.items()
    }
    assert ("nvidia.com/gpu" in keys["worker"]) == workers_may
    assert ("nvidia.com/gpu" in keys["server"]) == servers_may


@given(st.integers(16, 4096), st.sampled_from(["Mi", "Gi", "M"]))
def test_shared_memory_fits_into_the_memory_of_the_container(number, unit):
    memory = f"{max(number, 17)}{unit}"
    spec = job_specs(job(memory=memory))["worker"]
    (shared,) = [volume for volume in spec["template"]["spec"]["volumes"] if volume["name"] == "shm"]
    assert shared["emptyDir"]["medium"] == "Memory"
    assert parse_quantity(shared["emptyDir"]["sizeLimit"]) == Fraction(parse_quantity(memory) // 2)
    assert container(spec)["resources"] == {"requests": {"memory": memory}, "limits": {"memory": memory}}
    assert {"name": "shm", "mountPath": "/dev/shm"} in container(spec)["volumeMounts"]


@pytest.mark.parametrize(("grace_s", "for_saving_s"), [(120, 110), (600, 590), (30, 20), (15, 10), (5, 4)])
def test_saving_ends_before_the_kill(grace_s, for_saving_s):
    spec = job_specs(job(grace_s=grace_s))["worker"]
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == grace_s
    assert environ(spec)["TRIREME_GRACE_S"] == str(for_saving_s)


@pytest.mark.parametrize("jobset", [False, True])
def test_kueue_finds_the_run_suspended_in_its_queue(jobset):
    top = render(job(queue="team-a", jobset=jobset))[-1]
    assert top["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert top["spec"]["suspend"] is True
    assert "suspend" not in render(job(jobset=jobset))[-1]["spec"]


def test_backups_are_found_by_every_pod():
    for spec in job_specs(job(workers=2, backup_claim="claim")).values():
        assert environ(spec)["TRIREME_BACKUP"] == "/trireme/backup/train"
        assert {"name": "backup", "mountPath": "/trireme/backup"} in container(spec)["volumeMounts"]
        assert {"name": "backup", "persistentVolumeClaim": {"claimName": "claim"}} in spec["template"][
            "spec"
        ]["volumes"]
    assert environ(job_specs(job(backup="s3://a/$(b)"))["worker"])["TRIREME_BACKUP"] == "s3://a/$$(b)"
    assert "TRIREME_BACKUP" not in environ(job_specs(job())["worker"])


def test_servers_save_where_the_pods_that_replace_them_look():
    specs = job_specs(job(servers=1, backup_claim="claim"))
    assert environ(specs["server"])["TRIREME_SNAPSHOTS"] == "/trireme/backup/train"
    assert "TRIREME_SNAPSHOTS" not in environ(specs["worker"])
    for spec in specs.values():
        assert "TRIREME_BACKUP" not in environ(spec)
        # The script may save its model there.
        assert {"name": "backup", "mountPath": "/trireme/backup"} in container(spec)["volumeMounts"]
    assert "TRIREME_SNAPSHOTS" not in environ(job_specs(job(servers=1))["server"])


@pytest.mark.parametrize("jobset", [False, True])
def test_each_role_is_given_the_keys_of_that_role(jobset):
    made = job(servers=1, jobset=jobset)
    keys = {"server": {"A": "of servers"}, "worker": {"B": "of workers", "C": "secret"}}
    by_name = {item["metadata"]["name"]: item for item in secrets(made, keys)}
    assert len(by_name) == 2
    for role, spec in job_specs(made).items():
        (source,) = container(spec)["envFrom"]
        secret = by_name[source["secretRef"]["name"]]
        assert {name: base64.b64decode(text).decode() for name, text in secret["data"].items()} == keys[role]
        assert secret["immutable"] is True
        owner = "JobSet/train" if jobset else "Job/train-worker"
        assert secret["metadata"]["annotations"] == {"trireme.dev/owner": owner}
    assert not any("envFrom" in container(spec) for spec in job_specs(job()).values())


def test_secrets_are_no_part_of_what_is_rendered():
    assert "Secret" not in {item["kind"] for item in render(job(servers=1))}
    assert "secrets" in header(job(servers=1)) and "secrets" not in header(job())


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_accepts_the_secrets(version):
    made = job(servers=1)
    first, second = fresh_secrets(made), fresh_secrets(made)
    for secret in first:
        assert kubernetes_validate.validate(secret, version, strict=True) == version
    texts = [text for secret in first + second for text in secret["data"].values()]
    # Of each pair of keys the workers' public one is in both Secrets.
    assert len(texts) == 10 and len(set(texts)) == 8
    assert fresh_secrets(job()) == []


def test_a_server_without_workers_is_not_replaced():
    specs = job_specs(job(servers=1))
    action = {role: spec["podFailurePolicy"]["rules"][2]["action"] for role, spec in specs.items()}
    assert action == {"worker": "Ignore", "server": "FailJob"}
    assert specs["server"]["podFailurePolicy"]["rules"][2]["onExitCodes"]["values"] == [75]


def test_with_servers_the_chief_ends_the_run_and_the_servers_go_with_it():
    objects = {item["metadata"]["name"]: item for item in render(job(workers=3, servers=2))}
    worker, server = objects["train-worker"], objects["train-server"]
    assert worker["spec"]["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert "successPolicy" not in server["spec"]
    owners = {
        name: item["metadata"].get("annotations", {}).get("trireme.dev/owner")
        for name, item in objects.items()
    }
    assert owners.pop("train-worker") is None
    assert set(owners.values()) == {"Job/train-worker"}


def test_a_jobset_starts_servers_first_and_ends_with_the_workers():
    jobset = render(job(servers=2, jobset=True))[-1]["spec"]
    assert [one["name"] for one in jobset["replicatedJobs"]] == ["server", "worker"]
    assert jobset["replicatedJobs"][1]["dependsOn"] == [{"name": "server", "status": "Ready"}]
    assert jobset["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["worker"]}
    assert "dependsOn" not in render(job(jobset=True))[-1]["spec"]["replicatedJobs"][0]


def test_code_cannot_change_under_a_run():
    (config_map,) = [item for item in render(job()) if item["kind"] == "ConfigMap"]
    assert config_map["immutable"] is True


def test_a_folder_runs_in_a_copy_that_can_be_written():
    pod = job_specs(job(source=FOLDER))["worker"]["template"]["spec"]
    (copying,) = pod["initContainers"]
    (main,) = pod["containers"]
    assert main["workingDir"] == "/trireme/work"
    assert main["command"][-1] == "/trireme/work/train.py"
    assert {"name": "work", "emptyDir": {}} in pod["volumes"]
    assert copying["image"] == main["image"]


def test_the_copy_is_the_folder():
    """Files of a ConfigMap are links into a hidden folder, and images may run as a user who owns neither folder."""
    command = job_specs(job(source=FOLDER))["worker"]["template"]["spec"]["initContainers"][0]["command"]
    with tempfile.TemporaryDirectory() as parent:
        mounted, copy = pathlib.Path(parent, "mounted"), pathlib.Path(parent, "copy")
        (mounted / "..2026" / "package").mkdir(parents=True)
        (mounted / "..2026" / "train.py").write_text("train")
        (mounted / "..2026" / "package" / "part.py").write_text("part")
        (mounted / "..data").symlink_to("..2026")
        (mounted / "train.py").symlink_to("..data/train.py")
        (mounted / "package").symlink_to("..data/package")
        copy.mkdir()
        copy.chmod(0o777)
        os.chmod(parent, 0o755)
        code = command[-1].replace("/trireme/source", str(mounted)).replace("/trireme/work", str(copy))
        write = f"open({str(copy / 'package' / 'part.py')!r}, 'a').write(' changed')"
        assert exit_code_as_nobody(f"{code}\n{code}\n{write}") == 0
        found = {str(path.relative_to(copy)): path.read_text() for path in copy.rglob("*") if path.is_file()}
        assert found == {"train.py": "train", "package/part.py": "part changed"}
        assert not any(path.is_symlink() for path in copy.rglob("*"))


def exit_code_as_nobody(code: str) -> int:
    """Runs Python code in a fork of this process, which is not root even where this one is."""
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            exec(code, {})
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_module_in_the_image_ships_nothing():
    made = job(source=Source("package.train", ("-v",), is_module=True))
    assert "ConfigMap" not in [item["kind"] for item in render(made)]
    main = container(job_specs(made)["worker"])
    assert main["command"][-2:] == ["-m", "package.train"] and main["args"] == ["-v"]
    assert [mount["name"] for mount in main["volumeMounts"]] == ["shm"]


def test_everything_is_made_where_it_was_asked_for():
    made = job(namespace="research", servers=1)
    assert {item["metadata"]["namespace"] for item in render(made)} == {"research"}
    assert header(made).count("--namespace research") == 3
    assert all("namespace" not in item["metadata"] for item in render(job()))


def test_equal_jobs_are_rendered_into_equal_objects_that_share_nothing():
    first, second = render(job(servers=2)), render(job(servers=2))
    assert first == second
    first[-1]["spec"]["template"]["spec"]["containers"][0]["env"].clear()
    assert render(job(servers=2)) == second
