"""`trireme worker`: what is typed, or stands in the environment of a pod, becomes a job and an agent."""

import json

import pytest

from trireme.agent import agent
from trireme.cli.main import execute
from trireme.cli.run import run
from trireme.cli.worker import SHARED, worker
from trireme.launch import local

POD = {
    "TRIREME_CLUSTER": json.dumps(
        {"worker": {"replicas": 2, "host": "train-worker-{index}.train", "port": 29500}}
    ),
    "JOB_COMPLETION_INDEX": "1",
    "TRIREME_ROLE": "worker",
    "TRIREME_RUN_ID": "abc",
    "TRIREME_RENDEZVOUS": "train-worker-0.train:29400",
    "TRIREME_RESTARTED_BY": "agent",
    "TRIREME_MAX_RESTARTS": "3",
    "TRIREME_GRACE_S": "110",
    "TRIREME_BACKUP": "gs://bucket/train",
    "TRIREME_BACKEND": "jax",
    "KERAS_BACKEND": "jax",
    "TRIREME_SEED": "7",
}


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The jobs and settings of the agents that would have run; each of them ends with exit code 7."""
    found = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise AssertionError('started')")
    monkeypatch.setattr(agent, "run", lambda job, settings: found.append((job, settings)) or 7)
    return found


def test_a_pod_finds_all_it_needs_in_its_environment(started, monkeypatch):
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    assert execute(["worker", "--", "train.py", "--epochs", "3"]) == 7
    [(job, settings)] = started
    assert (job.target, job.arguments, job.backend) == ("train.py", ("--epochs", "3"), "jax")
    assert (job.grace_s, job.backup, job.seed) == (110, "gs://bucket/train", 7)
    assert (settings.identity.index, settings.rules.num_agents) == (1, 2)
    assert settings.rules.restarts.max_restarts == 3
    assert settings.rules.backup == "gs://bucket/train"


def test_a_module_in_a_pod(started, monkeypatch):
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    assert execute(["worker", "--", "-m", "json.tool", "-v"]) == 7
    assert (started[0][0].kind, started[0][0].target, started[0][0].arguments) == (
        "module",
        "json.tool",
        ("-v",),
    )


def test_a_worker_of_parameter_servers_goes_its_own_pace(started, monkeypatch):
    jobs = []
    last_words = []
    monkeypatch.setattr(
        local, "run", lambda job, is_last_word: (jobs.append(job), last_words.append(is_last_word)) and 9
    )
    servers = {"server": {"replicas": 2, "host": "train-server-{index}.train", "port": 2222}}
    cluster = json.dumps(json.loads(POD["TRIREME_CLUSTER"]) | servers)
    for name, value in {**POD, "TRIREME_CLUSTER": cluster}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TRIREME_BACKUP")
    assert execute(["worker", "--", "train.py"]) == 9
    assert (len(jobs[0].cluster.servers), list(jobs[0].ranks), started) == (2, [1], [])
    monkeypatch.setenv("TRIREME_RESTARTED_BY", "agent")
    assert execute(["worker", "--", "train.py"]) == 9
    assert last_words == ["TRIREME_RESTARTED_BY" in POD, True]


def test_what_is_typed_comes_before_the_environment(started, monkeypatch, tmp_path):
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    options = ["--max-restarts", "0", "--backup", "mine", "--backup-every", "5", "--grace", "2"]
    assert execute(["worker", *options, "--rendezvous", "host0:1", "train.py"]) == 7
    [(job, settings)] = started
    assert (job.backup, job.backup_every, job.grace_s) == (str(tmp_path / "mine"), 5, 2)
    assert settings.rules.restarts.max_restarts == 0
    assert settings.identity.rendezvous == "host0:1"


def test_two_machines_by_hand(started, monkeypatch):
    monkeypatch.setenv("TRIREME_TOKEN", "secret")
    line = ["--backend", "tensorflow", "--replicas", "2", "--rendezvous", "host0:29400"]
    for machine in ("0", "1"):
        assert execute(["worker", *line, "--machines", "2", "--machine", machine, "train.py"]) == 7
    assert [settings.identity.index for _, settings in started] == [0, 1]
    assert [job.num_workers for job, _ in started] == [2, 2]


@pytest.mark.parametrize(
    ("line", "environ", "code", "words"),
    [
        ([], {}, 64, ["the script is missing", "trireme worker train.py"]),
        (["--machines", "two", "train.py"], {}, 64, ["--machines 'two'"]),
        (["--machine", "0", "nope.py"], {}, 64, ["no file 'nope.py'"]),
        (["--servers", "2", "train.py"], {}, 64, ["there is no option --servers"]),
        (["--machines", "2", "--machine", "0", "train.py"], {}, 78, ["TRIREME_TOKEN", "--rendezvous"]),
        (["train.py"], POD | {"TRIREME_MAX_RESTARTS": "many"}, 64, ["'many'"]),
        (["train.py"], POD | {"TRIREME_CLUSTER": "{"}, 78, ["TRIREME_CLUSTER"]),
    ],
)
def test_mistakes_are_told_before_anything_starts(started, monkeypatch, capfd, line, environ, code, words):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert execute(["worker", *line]) == code
    said = capfd.readouterr().err
    assert all(word in said for word in words), said
    assert started == []


def test_it_has_the_options_of_run_that_are_about_one_machine():
    options = {parameter.name for parameter in worker.params}
    assert set(SHARED) < options
    assert options - {parameter.name for parameter in run.params} == {"rendezvous", "machines", "machine"}
