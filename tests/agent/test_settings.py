"""Who an agent is: from the pods of a run, from Slurm, from `TF_CONFIG`, or from what somebody typed."""

import json

import pytest

from tests.kubernetes.jobs import JOBS
from tests.kubernetes.test_cluster import environ_in_pod
from trireme.agent.channel import key_of
from trireme.agent.settings import settings_of
from trireme.cli.worker import with_environment
from trireme.errors import ConfigurationError
from trireme.launch.planning import Machine, plan

PODS = {
    "TRIREME_CLUSTER": json.dumps(
        {"worker": {"replicas": 3, "host": "train-worker-{index}.train", "port": 29500, "workers_per_pod": 2}}
    ),
    "JOB_COMPLETION_INDEX": "1",
    "TRIREME_ROLE": "worker",
    "TRIREME_RUN_ID": "abc",
    "TRIREME_RENDEZVOUS": "train-worker-0.train:29400",
    "TRIREME_RENDEZVOUS_TIMEOUT_S": "300",
    "TRIREME_RESTARTED_BY": "agent",
    "TRIREME_NODE": "node7",
}
SLURM = {
    "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[0-1]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_DISTRIBUTION": "block", "TRIREME_TOKEN": "secret",
}  # fmt: skip
TF_CONFIG = {
    "TF_CONFIG": json.dumps(
        {"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 1}}
    ),
    "TRIREME_TOKEN": "secret",
}


def job_of(environ, **options):
    return plan("", kind="module", backend="tensorflow", environ=environ, machine=Machine(), **options)


def settings(environ, typed=None, **options):
    return settings_of(job_of(environ, **options), environ, **(typed or {}))


def test_a_pod_is_an_agent_with_all_workers_of_the_pod():
    found = settings(PODS, max_restarts=3)
    assert (found.identity.index, found.rules.num_agents) == (1, 3)
    assert found.expected == ("train-worker-1.train:29500", "train-worker-1.train:29501")
    assert found.rules.places == ("train-worker-0.train", "train-worker-1.train", "train-worker-2.train")
    assert found.identity.place == "train-worker-1.train on node node7"
    assert (found.host, found.port, found.rules.run_id) == ("train-worker-0.train", 29400, "abc")
    assert (found.rules.timeout_s, found.rules.restarts.max_restarts) == (300, 3)
    assert found.rules.is_last_word and not found.is_chiefs
    assert found.key == key_of("abc")


@pytest.mark.parametrize(
    ("name", "gpus", "num_agents", "num_workers"),
    [
        ("smallest", 0, 1, 1),
        ("four_workers_one_gpu", 1, 4, 4),
        ("jobset", 1, 4, 4),
        ("folder_on_tensorflow_four_gpus", 4, 2, 8),
        ("module_on_jax_everywhere", 8, 12, 12),
    ],
)
def test_every_pod_that_is_rendered_is_one_of_the_agents(name, gpus, num_agents, num_workers):
    made = JOBS[name]
    machine = Machine(gpus=tuple(map(str, range(gpus))), num_devices=gpus or 1)
    workers = []
    for index in range(num_agents):
        environ = environ_in_pod(made, "worker", index)
        job = plan("", kind="module", backend=made.backend, environ=environ, machine=machine)
        found = settings_of(job, environ)
        assert (found.identity.index, found.rules.num_agents) == (index, num_agents)
        assert found.is_pod and found.rules.is_last_word == (name != "jobset")
        assert found.rules.num_starts == (2 if name == "jobset" else 0)
        workers += found.expected
    assert len(set(workers)) == num_workers


def test_in_a_jobset_the_agents_restart_nothing_and_go_on_counting():
    found = settings(PODS | {"TRIREME_RESTARTED_BY": "jobset", "TRIREME_GENERATION": "2"}, max_restarts=3)
    assert (found.rules.restarts.max_restarts, found.rules.num_starts) == (0, 2)
    assert not found.rules.is_last_word


def test_every_task_of_slurm_is_an_agent_and_all_of_them_compute_the_same_rendezvous():
    found = [
        settings(SLURM | {"SLURM_PROCID": str(task), "SLURM_NODEID": str(task // 2), "SLURM_LOCALID": str(task % 2)})
        for task in range(4)
    ]  # fmt: skip
    assert [one.identity.index for one in found] == [0, 1, 2, 3]
    assert {(one.host, one.rules.num_agents, one.rules.run_id) for one in found} == {("n0", 4, "12.0")}
    [port] = {one.port for one in found}
    assert port not in {int(address.rpartition(":")[2]) for one in found for address in one.expected}
    assert {one.key for one in found} == {key_of("secret")}


def test_tf_config_says_who_the_agents_are():
    found = settings(TF_CONFIG)
    assert (found.identity.index, found.rules.num_agents, found.host) == (1, 2, "a")
    assert found.expected == ("b:2222",)


def test_two_machines_by_hand():
    environ = {"TRIREME_TOKEN": "secret"}
    typed = {"rendezvous": "host0:29400", "machines": 2}
    first, second = (settings(environ, typed | {"machine": index}, workers=2) for index in range(2))
    assert (first.identity.index, second.identity.index) == (0, 1)
    assert first.rules.run_id == second.rules.run_id != "secret"
    assert first.key == second.key
    assert first.expected == ("?", "?")


def test_one_machine_alone_needs_nothing():
    found = settings({})
    assert (found.identity.index, found.rules.num_agents, found.host, found.port) == (0, 1, "127.0.0.1", 0)
    assert settings({}).key != found.key


@pytest.mark.parametrize(
    ("environ", "typed", "words"),
    [
        ({}, {"machines": 2, "machine": 1, "rendezvous": "a:1"}, "export TRIREME_TOKEN="),
        ({"TRIREME_TOKEN": "x"}, {"machines": 2, "machine": 1}, "--rendezvous"),
        ({"TRIREME_TOKEN": "x"}, {"machines": 2, "machine": 2, "rendezvous": "a:1"}, "expected 0 to 1"),
        ({"TRIREME_TOKEN": "x"}, {"machines": 2, "rendezvous": "a:1"}, "type both"),
        ({"TRIREME_TOKEN": "x"}, {"rendezvous": "nowhere"}, "the rendezvous is 'nowhere'"),
        ({"TRIREME_TOKEN": "x"}, {"rendezvous": "a:0"}, "the rendezvous is 'a:0'"),
        (PODS, {"machines": 3, "machine": 1}, "kubernetes says that this is worker 2 of 6"),
        (PODS | {"TRIREME_RENDEZVOUS_TIMEOUT_S": "soon"}, {}, "TRIREME_RENDEZVOUS_TIMEOUT_S is 'soon'"),
        (PODS | {"TRIREME_HEARTBEAT_S": "0"}, {}, "TRIREME_HEARTBEAT_S is '0'"),
        (PODS | {"TRIREME_GENERATION": "-1"}, {}, "TRIREME_GENERATION is '-1'"),
        (PODS | {"TRIREME_RESTARTED_BY": "nobody"}, {}, "TRIREME_RESTARTED_BY is 'nobody'"),
    ],
)
def test_what_cannot_work_is_told_before_anything_starts(environ, typed, words):
    with pytest.raises(ConfigurationError) as error:
        settings(environ, typed)
    assert words in str(error.value)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigurationError) as error:
        settings({"TRIREME_HEARTBEAT_S": "x"}, {"machines": 2})
    assert str(error.value).count("\n  - ") == 4


@pytest.mark.parametrize(
    ("typed", "environ", "expected"),
    [
        ({"backup": None}, {"TRIREME_BACKUP": "/b"}, {"backup": "/b"}),
        ({"backup": "/mine"}, {"TRIREME_BACKUP": "/b"}, {"backup": "/mine"}),
        ({"backup": None}, {}, {"backup": None}),
        ({"max_restarts": None}, {"TRIREME_MAX_RESTARTS": "3"}, {"max_restarts": "3"}),
        ({"grace": None}, {"TRIREME_GRACE_S": "110"}, {"grace": "110"}),
        ({"backup_every": None}, {"TRIREME_BACKUP_EVERY": "epoch"}, {"backup_every": None}),
        ({"backup_every": None}, {"TRIREME_BACKUP_EVERY": "50"}, {"backup_every": "50"}),
    ],
)
def test_what_nobody_typed_may_stand_in_the_environment(typed, environ, expected):
    assert with_environment(typed, environ) == expected
