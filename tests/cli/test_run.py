import subprocess
import sys

import pytest

from trireme.cli.main import execute
from trireme.cli.run import STRATEGIES
from trireme.launch import local

SURROUNDINGS = ("TF_CONFIG", "RANK", "WORLD_SIZE", "TRIREME_WORKERS", "TRIREME_RANK", "TRIREME_CLUSTER")


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """The jobs that would have been started; each of them ends with exit code 7."""
    started = []
    for name in SURROUNDINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise AssertionError('started')")
    monkeypatch.setattr(local, "run", lambda job: started.append(job) or 7)
    return started


def test_starts_the_job_and_returns_its_exit_code(jobs):
    line = ["--replicas", "3", "--backend", "tensorflow", "--log-dir", "logs", "--timeout", "1.5"]
    assert execute(["run", *line, "--strategy", "mirrored", "train.py", "--epochs", "3", "--help"]) == 7
    (job,) = jobs
    assert (job.kind, job.target, job.arguments) == ("script", "train.py", ("--epochs", "3", "--help"))
    assert (job.num_workers, job.replicas_per_worker, job.backend) == (3, 1, "tensorflow")
    assert (job.strategy, job.log_dir, job.timeout_s) == ("mirrored", "logs", 1.5)


def test_workers_and_replicas_of_jax(jobs):
    assert execute(["run", "--replicas=4", "--workers=2", "--backend=jax", "train.py"]) == 7
    assert (jobs[0].num_workers, jobs[0].replicas_per_worker) == (2, 2)


def test_the_backend_is_keras_own_unless_said_otherwise(jobs, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    execute(["run", "train.py"])
    execute(["run", "--backend", "tensorflow", "train.py"])
    assert [job.backend for job in jobs] == ["jax", "tensorflow"]


def test_a_module_of_the_working_folder(jobs, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise AssertionError('imported')")
    assert execute(["run", "-m", "package.train", "-m", "x"]) == 7
    assert (jobs[0].kind, jobs[0].target, jobs[0].arguments) == ("module", "package.train", ("-m", "x"))


def test_an_installed_module(jobs):
    assert execute(["run", "-mjson.tool"]) == 7
    assert jobs[0].target == "json.tool"


def test_a_folder_with_a_main_module(jobs, tmp_path):
    (tmp_path / "app").mkdir()
    assert execute(["run", "app"]) == 64
    (tmp_path / "app" / "__main__.py").write_text("")
    assert execute(["run", "app"]) == 7


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], ["the script is missing", "trireme run train.py"]),
        (["--replicas", "2"], ["the script is missing"]),
        (["-m"], ["the module after -m is missing"]),
        (["nope.py"], ["no file 'nope.py'"]),
        (["no such/script.py", "--help"], ["no file 'no such/script.py'"]),
        (["-m", "no_such_module.train"], ["no module 'no_such_module'"]),
        (["--replicas", "two", "train.py"], ["--replicas 'two'", "--replicas 2"]),
        (["--replicas", "0", "train.py"], ["--replicas 0"]),
        (["--workers", "-1", "train.py"], ["--workers -1"]),
        (["--replicas", "1.5", "train.py"], ["--replicas '1.5'"]),
        (["--timeout", "soon", "train.py"], ["--timeout 'soon'", "--timeout 120"]),
        (["--timeout", "0", "train.py"], ["0"]),
        (["--timeout", "nan", "train.py"], ["nan"]),
        (["--strategy", "miror", "train.py"], ["'miror'", "did you mean mirrored?"]),
        (["--strategy", "zzz", "train.py"], ["'zzz'", *STRATEGIES]),
        (["--backend", "theano", "train.py"], ["'theano'", "tensorflow", "jax"]),
        (["--log-dir", "train.py", "train.py"], ["--log-dir train.py is a file"]),
        (["--replica", "2", "train.py"], ["did you mean --replicas?"]),
        (["--epochs", "2", "train.py"], ["no option --epochs", "after the script"]),
        (["--backend", "tensorflow", "--replicas", "2", "--workers", "3", "train.py"], ["--workers 3"]),
    ],
)
def test_usage_mistakes_end_with_64_before_anything_starts(jobs, capfd, line, words):
    assert execute(["run", *line]) == 64
    errors = capfd.readouterr().err
    for word in words:
        assert word in errors
    assert jobs == []


def test_all_mistakes_are_told_at_once(jobs, capfd):
    line = [
        "--replicas",
        "x",
        "--workers",
        "0",
        "--strategy",
        "miror",
        "--timeout",
        "soon",
        "--backend",
        "theano",
    ]
    assert execute(["run", *line, "--log-dir", "train.py", "nope.py"]) == 64
    errors = capfd.readouterr().err
    for word in ("'x'", "--workers 0", "'miror'", "'soon'", "'theano'", "train.py is a file", "'nope.py'"):
        assert errors.count(word) == 1, errors


def test_after_an_unknown_option_no_word_is_blamed_as_the_script(jobs, capfd):
    assert execute(["run", "--epochs", "3", "--replicas", "x", "train.py"]) == 64
    errors = capfd.readouterr().err
    assert "no option --epochs" in errors
    assert "no file" not in errors


def test_a_framework_that_is_missing_is_named_with_what_to_install(jobs, capfd, monkeypatch):
    from trireme.cli import run as module

    monkeypatch.setattr(module, "is_installed", lambda backend: False)
    assert execute(["run", "--backend", "jax", "train.py"]) == 64
    assert "pip install 'keras-trireme[jax]'" in capfd.readouterr().err


def test_a_broken_environment_is_no_usage_mistake(jobs, capfd, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    assert execute(["run", "train.py"]) == 78
    assert "TF_CONFIG" in capfd.readouterr().err
    assert jobs == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_of_the_help_exists(name):
    from trireme.strategies import by_name

    assert by_name(name)


def test_for_real(tmp_path):
    # A folder with a space, an argument that looks like an option, and an exit code of the script's own.
    folder = tmp_path / "my runs"
    folder.mkdir()
    (folder / "train.py").write_text("import sys; print(sys.argv[1:], flush=True); sys.exit(5)")
    command = [sys.executable, "-m", "trireme", "run", "--backend", "jax", "--log-dir", str(folder / "logs")]
    done = subprocess.run(
        [*command, "my runs/train.py", "--help", ""],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 5, done.stderr
    assert done.stdout.splitlines()[-1] == "['--help', '']"
    assert "code 5" in done.stderr
