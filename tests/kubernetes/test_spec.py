"""A job is checked as a whole: every mistake at once, each with what to type."""

import dataclasses
import pickle

import pytest

from tests.kubernetes.jobs import job
from trireme.errors import EXIT_USAGE, InvalidJob
from trireme.launch.kubernetes.source import MAX_BYTES, Source

MISTAKES = {
    "no name": ({"name": ""}, "add --name train"),
    "no image": ({"image": ""}, "add --image REGISTRY/NAME:TAG"),
    "no worker": ({"workers": 0}, "--workers 0: expected a whole number from 1 to 100000"),
    "too many workers": ({"workers": 100_001}, "--workers 100001: expected"),
    "workers as text": ({"workers": "4"}, "--workers '4': expected a whole number"),
    "workers as a truth value": ({"workers": True}, "--workers True: expected a whole number"),
    "fewer servers than none": ({"servers": -1}, "--servers -1: expected a whole number from 0"),
    "fewer GPUs than none": ({"gpus": -1}, "--gpus -1: expected a whole number from 0 to 64"),
    "no grace": ({"grace_s": 0}, "--grace 0: expected a whole number from 5"),
    "unknown backend": ({"backend": "mxnet"}, "--backend 'mxnet': expected one of tensorflow, jax, torch"),
    "run id with a blank": ({"run_id": "a b"}, "run_id 'a b': expected"),
    "memory": ({"memory": "16GB"}, "--memory 16Gi"),
    "cpu": ({"cpu": "4Gi"}, "--cpu 4"),
    "namespace": ({"namespace": "Team A"}, "--namespace 'Team A': expected at most 63"),
    "queue": ({"queue": "team_a"}, "--queue 'team_a': expected at most 63"),
    "priority class": ({"priority_class": "High"}, "--priority-class 'High': expected at most 253"),
    "claim": ({"backup_claim": "a/b"}, "--backup-claim 'a/b': expected at most 253"),
    "two places for backups": (
        {"backup_claim": "a", "backup": "gs://b"},
        "both say where backups go: leave one out",
    ),
    "a folder for backups": ({"backup": "/ckpt"}, "--backup-claim CLAIM"),
    "a local URL for backups": ({"backup": "file:///ckpt"}, "is a folder inside one pod"),
    "a URL with a blank": ({"backup": "gs://a b"}, "is no URL that every pod can reach"),
    "selector": ({"node_selector": ("pool",)}, "--node-selector topology.kubernetes.io/zone="),
    "two selectors": (
        {"node_selector": ("a=1", "a=2")},
        "--node-selector a=1 and --node-selector a=2: no node has",
    ),
    "toleration": ({"tolerations": ("a:b",)}, "--toleration dedicated=training:NoSchedule"),
    "servers in a queue": ({"servers": 1, "queue": "a"}, "add --jobset"),
    "object storage for servers": (
        {"servers": 1, "backup": "gs://a"},
        "servers keep snapshots, in a folder: name a PersistentVolumeClaim, --backup-claim CLAIM",
    ),
    "servers that save every few steps": (
        {"servers": 1, "backup_claim": "a", "backup_every": 5},
        "servers save by the clock, every TRIREME_SNAPSHOT_INTERVAL_S seconds: leave it out",
    ),
    "an argument that is no text": ({"source": Source("a", ("\udcff",), is_module=True)}, "is not UTF-8"),
    "too much code": (
        {"source": Source("a", files=(("a", b"0" * (MAX_BYTES + 1)),))},
        "build an image with it",
    ),
}


@pytest.mark.parametrize(("options", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake(options, said):
    with pytest.raises(InvalidJob) as caught:
        job(**options)
    (mistake,) = caught.value.mistakes
    assert said in mistake


def test_all_mistakes_at_once():
    options = {
        "name": "My Train",
        "image": "Train",
        "workers": 0,
        "gpus": -1,
        "memory": "16GB",
        "cpu": "four",
        "node_selector": ("a", "b"),
        "tolerations": ("a:b",),
        "backend": "mxnet",
    }
    with pytest.raises(InvalidJob) as caught:
        job(**options)
    assert len(caught.value.mistakes) == len(options) + 1
    assert str(caught.value).splitlines() == [
        "This job cannot run:",
        *(f"  - {mistake}" for mistake in caught.value.mistakes),
    ]
    assert caught.value.exit_code == EXIT_USAGE


def test_all_that_does_not_go_with_servers_at_once():
    with pytest.raises(InvalidJob) as caught:
        job(servers=2, queue="a", backup="gs://a", backup_every=5)
    assert [mistake.partition(" ")[0] for mistake in caught.value.mistakes] == [
        "--queue",
        "--backup",
        "--backup-every",
    ]


def test_the_error_can_be_sent_to_another_process():
    error = pickle.loads(pickle.dumps(InvalidJob(["one", "two"])))
    assert error.mistakes == ("one", "two") and str(error) == "This job cannot run:\n  - one\n  - two"


@pytest.mark.parametrize(
    "options",
    [
        {"node_selector": ("a=1", "a=1")},
        {"servers": 1, "queue": "a", "jobset": True},
        {"backup": "s3://bucket/a?b=c"},
        {"backup": "az+blob://x"},
        {"source": Source("a", files=(("a", b"0" * MAX_BYTES),))},
        {"grace_s": 5},
    ],
    ids=lambda options: "-".join(options),
)
def test_what_is_no_mistake(options):
    job(**options)


def test_the_run_id_tells_jobs_apart_and_equal_jobs_are_equal():
    same = {job(workers=2).run_id for _ in range(2)}
    others = {
        job(workers=3).run_id,
        job(workers=2, backend="jax").run_id,
        job(workers=2, source=Source("train.py", files=(("train.py", b"another"),))).run_id,
        job(workers=2, source=Source("train.py", ("--epochs=4",))).run_id,
    }
    assert len(same) == 1 and len(others) == 4 and not same & others
    assert job(workers=2) == job(workers=2)


def test_the_seed_is_the_jobs_and_not_the_runs():
    """A run that is submitted again begins with the same weights."""
    assert job(run_id="first").seed == job(run_id="second").seed == job().seed
    assert job().seed != job(workers=2).seed
    assert 0 <= job().seed < 2**31


def test_a_job_that_is_changed_is_checked_again():
    with pytest.raises(InvalidJob, match="--workers 0"):
        dataclasses.replace(job(), workers=0)


@pytest.mark.parametrize(
    ("backend", "gpus", "workers_per_pod", "replicas_per_worker"),
    [
        ("tensorflow", 0, 1, 1),
        ("tensorflow", 1, 1, 1),
        ("tensorflow", 4, 4, 1),
        ("torch", 4, 4, 1),
        ("jax", 0, 1, 1),  # one virtual device
        ("jax", 4, 1, 4),
    ],
)
def test_who_drives_the_gpus_of_a_pod(backend, gpus, workers_per_pod, replicas_per_worker):
    made = job(backend=backend, gpus=gpus)
    assert (made.workers_per_pod, made.replicas_per_worker) == (workers_per_pod, replicas_per_worker)
