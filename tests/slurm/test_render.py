"""Batch scripts byte for byte, as bash reads them, and what cannot be submitted."""

import subprocess
import sys

import pytest

from tests.slurm.jobs import GOLDEN, JOBS, job
from trireme.cli.main import execute
from trireme.errors import InvalidJob
from trireme.launch.slurm.render import render


@pytest.mark.parametrize("name", JOBS)
def test_golden(name):
    golden = (GOLDEN / f"{name}.sh").read_text(encoding="utf-8")
    assert render(JOBS[name]) == golden, "meant? python -m tests.slurm.jobs"
    # `bash -n` reads without running.
    assert subprocess.run(["bash", "-n"], input=golden, text=True, capture_output=True).stderr == ""


def test_every_golden_file_belongs_to_a_job():
    assert {path.stem for path in GOLDEN.iterdir()} == set(JOBS)


@pytest.mark.parametrize(
    ("options", "tasks", "gpus_per_task"),
    [
        ({"workers": 4}, 4, 0),
        # A tensorflow or torch process drives one device.
        ({"workers": 4, "gpus": 2}, 8, 1),
        ({"workers": 4, "gpus": 2, "backend": "torch"}, 8, 1),
        ({"workers": 4, "gpus": 2, "backend": "jax"}, 4, 2),
    ],
)
def test_tasks_and_gpus(options, tasks, gpus_per_task):
    one = job(**options)
    assert (one.num_tasks, one.gpus_per_task) == (tasks, gpus_per_task)


@pytest.mark.parametrize(
    ("memory", "cpu", "mib"),
    [
        ("", "", 0),
        ("16G", "", 16384),
        ("16G", "4", 4096),
        ("10M", "3", 4),
        ("1T", "", 1048576),
        ("100K", "", 1),
        ("512", "", 512),
    ],
)
def test_memory_by_core(memory, cpu, mib):
    assert job(memory=memory, cpu=cpu).memory_per_cpu_mib == mib


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "my train"}, "like --name train"),
        ({"name": ""}, "like --name train"),
        ({"workers": 0}, "--workers 0"),
        ({"gpus": 65}, "--gpus 65"),
        ({"grace_s": 1}, "--grace 1"),
        ({"cpu": "500m"}, "whole cores, like --cpu 4"),
        ({"cpu": "0"}, "whole cores"),
        ({"memory": "16Gi"}, "like --memory 16G"),
        ({"partition": "a b"}, "--partition 'a b'"),
        ({"time_limit": "8h"}, "like --time-limit 8:00:00"),
        ({"backend": "theano"}, "--backend 'theano'"),
        ({"target": ""}, "nothing to run"),
        ({"target": "nix.py", "is_module": False}, "no script nix.py in /shared/me"),
        ({"options": ("constraint=x",)}, "as one word"),
        ({"options": ("--comment=a b",)}, "as one word"),
        ({"options": ("--ntasks=3",)}, "leave it out"),
        ({"options": ("-n3",)}, "leave it out"),
        ({"folder": "/my folder"}, "white space"),
        ({"log_dir": "logs/%u"}, "--log-dir 'logs/%u'"),
    ],
)
def test_a_mistake(options, said):
    with pytest.raises(InvalidJob) as error:
        job(**options)
    (mistake,) = error.value.mistakes
    assert said in mistake


@pytest.mark.parametrize("limit", ["90", "90:00", "8:00:00", "2-12", "2-12:30", "2-12:30:00"])
def test_times_that_sbatch_takes(limit):
    assert f"#SBATCH --time={limit}\n" in render(job(time_limit=limit))


def test_the_command_renders_what_it_was_asked_for(tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    options = [
        "--name=t",
        "--workers=2",
        "--gpus=1",
        "--cpu=4",
        "--memory=8G",
        "--backup=b",
        "--grace=60",
        "--backup-every=7",
    ]
    options += [
        "--partition=p",
        "--time-limit=60",
        "--sbatch=--account=a",
        "--sbatch",
        "--nice",
        "--backend=torch",
    ]
    assert execute(["render", "--on", "slurm", *options, "train.py", "--epochs", "2"]) == 0
    rendered = capfdbinary.readouterr().out.decode()
    assert rendered == render(
        job(
            name="t",
            target="train.py",
            is_module=False,
            arguments=("--epochs", "2"),
            workers=2,
            gpus=1,
            cpu="4",
            memory="8G",
            backup="b",
            backup_every=7,
            grace_s=60,
            partition="p",
            time_limit="60",
            options=("--account=a", "--nice"),
            backend="torch",
            python=sys.executable,
            folder=str(tmp_path),
        )
    )


def test_options_of_another_system_are_refused_all_at_once(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    line = [
        "--on",
        "slurm",
        "--image",
        "i",
        "--servers",
        "2",
        "--queue",
        "q",
        "--replicas",
        "2",
        "--rm",
        "nix.py",
    ]
    assert execute(["run", *line]) == 64
    said = capfd.readouterr().err
    for mistake in (
        "--image says",
        "--servers says",
        "--queue says",
        "--replicas says",
        "--rm says",
        "no script nix.py",
    ):
        assert mistake in said
    assert execute(["run", "--image", "i", "--partition", "p", "--name", "n", "nix.py"]) == 64
    said = capfd.readouterr().err
    for mistake in (
        "--on kubernetes",
        "--on slurm",
        "--name says something only with --on kubernetes or --on slurm",
    ):
        assert mistake in said


def test_without_sbatch_it_says_what_to_type(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "train.py").write_text("")
    assert execute(["run", "--on", "slurm", "--name", "t", "train.py"]) == 64
    assert "trireme render --on slurm" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("body", "exit_code", "said"),
    [
        ("cat > received; echo 41", 0, "squeue --job 41"),
        ("cat > received; echo '42;mycluster'", 0, "scancel 42"),
        (
            "echo 'error: invalid partition' >&2; exit 1",
            1,
            "sbatch did not take the job: error: invalid partition",
        ),
    ],
)
def test_submitting(tmp_path, monkeypatch, capfd, body, exit_code, said):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f'#!/bin/bash\n[ "$*" = --parsable ] || exit 9\n{body}\n')
    sbatch.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "train.py").write_text("")
    assert execute(["run", "--on", "slurm", "--name", "t", "--log-dir", "logs", "train.py"]) == exit_code
    assert said in capfd.readouterr().err
    if exit_code == 0:
        assert "#SBATCH --job-name=t\n" in (tmp_path / "received").read_text()
        assert (tmp_path / "logs").is_dir()
