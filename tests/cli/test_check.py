import pathlib
import subprocess
import sys
import textwrap

import pytest

from trireme.cli.check import SELF_CHECK, VERIFY
from trireme.cli.main import execute
from trireme.launch import local

SURROUNDINGS = ("TF_CONFIG", "RANK", "WORLD_SIZE", "TRIREME_WORKERS", "TRIREME_RANK", "TRIREME_CLUSTER")


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The jobs that would have been started; each writes the report in `reports`, if any, and ends well."""
    jobs, reports = [], ["exact\nall the same\n"]
    for name in SURROUNDINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise AssertionError('started')")

    def run(job):
        jobs.append(job)
        for report in reports:
            pathlib.Path(job.environ[VERIFY]).write_text(report)
        return 0

    monkeypatch.setattr(local, "run", run)
    return jobs, reports


@pytest.fixture
def jobs(started):
    return started[0]


@pytest.fixture
def reports(started):
    return started[1]


def test_alone_it_checks_a_model_of_its_own_on_two_replicas(jobs, capsys):
    assert execute(["check", "--backend", "torch"]) == 0
    (job,) = jobs
    assert (job.kind, job.target, job.num_workers, job.backend) == ("module", SELF_CHECK, 2, "torch")
    assert capsys.readouterr().out == "all the same\n"


def test_a_script_keeps_its_arguments(jobs):
    assert execute(["check", "--verify", "--replicas", "3", "train.py", "--epochs", "3"]) == 0
    (job,) = jobs
    assert (job.kind, job.target, job.arguments, job.num_workers) == (
        "script",
        "train.py",
        ("--epochs", "3"),
        3,
    )


def test_a_model_with_other_numbers_ends_with_one(jobs, reports, capsys):
    reports[:] = ["different\nnot the same\n"]
    assert execute(["check", "--verify", "train.py"]) == 1
    assert capsys.readouterr().out == "not the same\n"


def test_a_script_that_never_trains_is_told(jobs, reports, capsys):
    reports.clear()
    assert execute(["check", "--verify", "train.py"]) == 64
    assert "without a call of `fit`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--verify"], ["trireme check --verify train.py"]),
        (["train.py"], ["trireme check --verify train.py"]),
        (["--replicas", "1"], ["--replicas 2"]),
        (["--replcas", "2"], ["did you mean --replicas"]),
    ],
)
def test_mistakes_are_told(jobs, capsys, line, words):
    assert execute(["check", *line]) == 64
    assert jobs == []
    told = capsys.readouterr().err
    assert all(word in told for word in words)


def test_the_model_of_a_script_without_a_strategy(tmp_path):
    """One that divides a sum by the batch size it expects, which is not that of a replica."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import keras, numpy as np

            def loss(y, y_pred):
                return keras.ops.sum(keras.ops.square(y - y_pred)) / 8

            model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", loss)
            model.fit(np.ones((32, 2)), np.ones((32, 1)), batch_size=8, verbose=0)
            raise AssertionError("went on")
            """
        )
    )
    command = [
        sys.executable,
        "-m",
        "trireme",
        "check",
        "--verify",
        "--backend",
        "torch",
        "--strategy",
        "mirrored",
    ]
    done = subprocess.run([*command, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    assert "verdict: not the numbers of one device" in done.stdout
    assert "2 replicas against one device, batches of 8, 8, 7 rows" in done.stdout
