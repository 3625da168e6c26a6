"""What is rendered, with the index the Job controller adds, is detected as the right cluster in every pod."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kubernetes.jobs import JOBS, job
from trireme.cluster.cluster import Cluster
from trireme.cluster.resolve import resolve
from trireme.launch.kubernetes.environment import literal
from trireme.launch.kubernetes.render import render
from trireme.launch.kubernetes.spec import KubernetesJob


def pod_specs(made: KubernetesJob) -> dict[str, tuple[str, str, dict]]:
    """By role: the name of the Job that makes the pods, the Service they are below, and their spec."""
    found = {}
    for item in render(made):
        jobs = [(item["metadata"]["name"], item["spec"])] if item["kind"] == "Job" else []
        if item["kind"] == "JobSet":
            name = item["metadata"]["name"]
            jobs = [
                (f"{name}-{one['name']}-0", one["template"]["spec"]) for one in item["spec"]["replicatedJobs"]
            ]
        for job_name, spec in jobs:
            template = spec["template"]
            subdomain = template["spec"].get("subdomain", made.name)  # JobSet's own default
            found[template["metadata"]["labels"]["trireme.dev/role"]] = (
                job_name,
                subdomain,
                template["spec"],
            )
    return found


def expanded(text: str, variables: dict[str, str]) -> str:
    """What the kubelet makes of a value or an argument: `$(NAME)` is a variable, `$$` a dollar sign."""

    def replacement(match: re.Match) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replacement, text)


def environ_in_pod(made: KubernetesJob, role: str, index: int) -> dict[str, str]:
    """The environment of a container as the controller and the kubelet make it."""
    job_name, _, spec = pod_specs(made)[role]
    environ: dict[str, str] = {}
    fields = {
        "metadata.name": f"{job_name}-{index}-x7k2p",
        "metadata.uid": "uid-of-the-pod",
        "status.podIP": "10.0.0.7",
        "spec.nodeName": "node-1",
        "metadata.annotations['jobset.sigs.k8s.io/jobset-uid']": "uid-of-the-jobset",
        "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']": "2",
    }
    for entry in spec["containers"][0]["env"]:
        if "value" in entry:
            environ[entry["name"]] = expanded(entry["value"], environ)
        else:
            environ[entry["name"]] = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
    return environ | {"JOB_COMPLETION_INDEX": str(index)}


def host_names(made: KubernetesJob, role: str) -> list[str]:
    """The names under which the controller and the DNS make the pods of a role known."""
    job_name, subdomain, _ = pod_specs(made)[role]
    return [f"{job_name}-{index}.{subdomain}" for index in range(made.roles[role])]


def expected_cluster(made: KubernetesJob, role: str, index: int) -> Cluster:
    per_pod = made.gpus if made.gpus > 1 and made.backend != "jax" else 1
    return Cluster(
        workers=tuple(
            f"{host}:{29500 + local}" for host in host_names(made, "worker") for local in range(per_pod)
        ),
        servers=tuple(f"{host}:2222" for host in host_names(made, "server")) if made.servers else (),
        role=role,
        rank=index * (per_pod if role == "worker" else 1),
        replicas_per_worker=max(made.gpus, 1) if made.backend == "jax" else 1,
        run_id="uid-of-the-jobset" if made.jobset else made.run_id,
    )


def check_every_pod(made: KubernetesJob) -> None:
    for role, count in made.roles.items():
        for index in range(count):
            cluster = resolve(environ_in_pod(made, role, index))
            assert cluster == expected_cluster(made, role, index)
            assert cluster.source == "kubernetes"
            assert cluster.is_chief == (role == "worker" and index == 0)
            if role == "worker":
                assert (cluster.local_rank, cluster.num_local_workers) == (0, made.workers_per_pod)


@pytest.mark.parametrize("name", JOBS)
def test_every_pod_of_the_golden_jobs(name):
    check_every_pod(JOBS[name])


@given(
    workers=st.integers(1, 12),
    servers=st.integers(0, 3),
    gpus=st.integers(0, 3),
    backend=st.sampled_from(["tensorflow", "jax", "torch"]),
    jobset=st.booleans(),
)
@example(workers=12, servers=3, gpus=3, backend="torch", jobset=True)
def test_every_pod(workers, servers, gpus, backend, jobset):
    check_every_pod(job(workers=workers, servers=servers, gpus=gpus, backend=backend, jobset=jobset))


@pytest.mark.parametrize("name", JOBS)
def test_pods_meet_where_worker_0_is(name):
    made = JOBS[name]
    environs = [environ_in_pod(made, role, count - 1) for role, count in made.roles.items()]
    assert {environ["TRIREME_RENDEZVOUS"] for environ in environs} == {
        f"{host_names(made, 'worker')[0]}:29400"
    }
    assert len({environ["TRIREME_RUN_ID"] for environ in environs}) == 1
    assert len({environ["TRIREME_SEED"] for environ in environs}) == 1


@pytest.mark.parametrize("name", JOBS)
def test_the_index_is_left_to_the_controller(name):
    for _, _, spec in pod_specs(JOBS[name]).values():
        names = [entry["name"] for entry in spec["containers"][0]["env"]]
        assert "JOB_COMPLETION_INDEX" not in names
        assert len(names) == len(set(names))


@given(st.text(st.sampled_from("$()ab ")) | st.text())
@example("$(HOME) $$ $(")
@example("$")
def test_arguments_reach_the_script_unchanged(text):
    assert expanded(literal(text), {"HOME": "/root", "a": "b", "": "c"}) == text
