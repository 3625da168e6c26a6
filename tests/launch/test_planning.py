"""How many workers of how many replicas: what was asked for, on what machine, in which surroundings."""

import json

import pytest

from trireme.errors import ConfigurationError, UsageError
from trireme.launch.job import Job
from trireme.launch.planning import Machine, plan

CPU = Machine(num_cores=8)
TWO_GPUS = Machine(num_cores=8, gpus=("0", "1"), num_devices=2)


def planned(backend: str = "tensorflow", machine: Machine = CPU, environ=None, **options) -> Job:
    return plan(__file__, backend=backend, machine=machine, environ=environ or {}, **options)


def shape(job: Job) -> tuple[int, int]:
    return job.num_workers, job.replicas_per_worker


@pytest.mark.parametrize(
    ("backend", "machine", "replicas", "workers", "expected"),
    [
        # One device per worker: workers are replicas.
        ("tensorflow", CPU, None, None, (1, 1)),
        ("tensorflow", CPU, 4, None, (4, 1)),
        ("torch", CPU, None, 4, (4, 1)),
        ("torch", CPU, 3, 3, (3, 1)),
        ("tensorflow", TWO_GPUS, None, None, (2, 1)),
        ("tensorflow", TWO_GPUS, 1, None, (1, 1)),
        # More replicas than cores is slow, not impossible.
        ("tensorflow", Machine(num_cores=1), 4, None, (4, 1)),
        # One worker drives all of jax' devices, unless several are asked for.
        ("jax", CPU, None, None, (1, 1)),
        ("jax", CPU, 4, None, (1, 4)),
        ("jax", CPU, None, 2, (2, 1)),
        ("jax", CPU, 4, 2, (2, 2)),
        ("jax", TWO_GPUS, None, None, (1, 2)),
        ("jax", TWO_GPUS, None, 2, (2, 1)),
        ("jax", Machine(num_devices=8), None, None, (1, 8)),
    ],
)
def test_split(backend, machine, replicas, workers, expected):
    assert shape(planned(backend, machine, replicas=replicas, workers=workers)) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"replicas": 0}, ["--replicas 0"]),
        ({"workers": -1}, ["--workers -1"]),
        ({"replicas": 4, "workers": 2}, ["--replicas 4", "--workers 2", "Leave out --workers"]),
        ({"backend": "jax", "replicas": 3, "workers": 2}, ["--replicas 3", "--workers 2", "--replicas 4"]),
        ({"backend": "theano"}, ["'theano'", "tensorflow, torch, jax"]),
        ({"machine": TWO_GPUS, "replicas": 3}, ["3 devices", "2 GPU", "CUDA_VISIBLE_DEVICES=-1"]),
        ({"timeout_s": 0}, ["0 s"]),
        ({"environ": {"TRIREME_TIMEOUT_S": "soon"}}, ["TRIREME_TIMEOUT_S", "'soon'"]),
        ({"environ": {"TRIREME_SEED": "-3"}}, ["TRIREME_SEED", "'-3'"]),
        (
            {
                "backend": "jax",
                "replicas": 4,
                "environ": {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
            },
            ["4 replicas", "into 2 devices"],
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_values(options, words):
    with pytest.raises(UsageError) as caught:
        planned(**options)
    assert all(word in str(caught.value) for word in words), caught.value
    assert caught.value.exit_code == 64


def test_everything_wrong_is_told_at_once():
    with pytest.raises(UsageError) as caught:
        plan(
            "missing.py",
            replicas=0,
            workers=0,
            backend="theano",
            timeout_s=-1,
            environ={},
            found=["one more"],
        )
    for part in ("missing.py", "--replicas 0", "--workers 0", "theano", "-1 s", "one more"):
        assert part in str(caught.value)


def test_the_users_values_win():
    job = planned(environ={"TRIREME_SEED": "11", "TRIREME_TIMEOUT_S": "30"})
    assert (job.seed, job.timeout_s) == (11, 30.0)
    assert planned(environ={"TRIREME_TIMEOUT_S": "30"}, timeout_s=5).timeout_s == 5


def test_every_run_has_a_seed_of_its_own():
    assert len({planned().seed for _ in range(5)}) == 5


def tf_config(index: int, task_type: str = "worker", servers: tuple[str, ...] = ()) -> dict[str, str]:
    cluster = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"], "ps": list(servers)}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})}


def test_one_of_the_workers_that_others_start():
    jobs = [planned(environ=tf_config(index)) for index in range(2)]
    assert [list(job.ranks) for job in jobs] == [[0], [1]]
    assert not jobs[0].is_whole_run
    # Nobody can tell both a random number.
    assert jobs[0].seed == jobs[1].seed


def test_a_jax_worker_of_a_cluster_drives_all_its_devices():
    job = planned("jax", TWO_GPUS, tf_config(1))
    assert shape(job) == (1, 2)
    assert job.cluster.num_replicas == 4


def test_with_servers_every_worker_drives_one_device():
    assert shape(planned("jax", TWO_GPUS, tf_config(1, servers=("10.0.0.3:2222",)))) == (1, 1)
    assert shape(planned("jax", TWO_GPUS, servers=1)) == (2, 1)
    job = planned(workers=3, servers=2)
    assert (shape(job), job.num_servers) == ((3, 1), 2)


def test_servers_and_a_wish_that_contradict_each_other():
    with pytest.raises(UsageError, match=r"--servers 0 is impossible"):
        planned(workers=2, servers=0)
    with pytest.raises(UsageError, match=r"--replicas 3 and --workers 2.*--servers"):
        planned(workers=2, replicas=3, servers=1)
    with pytest.raises(UsageError, match=r"--servers 2, but TF_CONFIG says which servers there are: 1"):
        planned(servers=2, environ=tf_config(1, servers=("10.0.0.3:2222",)))


def test_a_cluster_and_a_wish_that_contradict_each_other():
    with pytest.raises(UsageError, match=r"--workers 3.*TF_CONFIG.*worker 1 of 2"):
        planned(workers=3, environ=tf_config(1))
    with pytest.raises(UsageError, match=r"server 0.*expected a worker"):
        planned(environ=tf_config(0, "ps", ("10.0.0.3:2222",)))
    with pytest.raises(ConfigurationError, match="TF_CONFIG"):
        planned(environ={"TF_CONFIG": "{"})


def test_a_launcher_inside_a_worker_starts_a_run_of_its_own():
    job = planned(environ={**tf_config(1), "TRIREME_RELAUNCHED": "1"}, replicas=3)
    assert (job.cluster, shape(job)) == (None, (3, 1))


def test_a_pod_starts_all_its_workers():
    description = {
        "worker": {"replicas": 2, "host": "train-{index}.train", "port": 29500, "workers_per_pod": 2}
    }
    environ = {
        "TRIREME_CLUSTER": json.dumps(description),
        "TRIREME_ROLE": "worker",
        "JOB_COMPLETION_INDEX": "1",
    }
    job = planned(machine=TWO_GPUS, environ=environ)
    assert list(job.ranks) == [2, 3]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_workers": 0, "timeout_s": 0, "kind": "notebook"}, ["num_workers", "timeout_s", "'notebook'"]),
        ({"backend": "tensorflow", "replicas_per_worker": 2}, ["one device"]),
        ({"grace_s": float("inf")}, ["grace_s"]),
    ],
)
def test_a_job_checks_itself(fields, words):
    with pytest.raises(UsageError) as caught:
        Job("train.py", **fields)
    assert all(word in str(caught.value) for word in words)
