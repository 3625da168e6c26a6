"""`trireme render --on kubernetes ...` as a person types it."""

import dataclasses
import os
import pathlib
import subprocess
import sys

import pytest
import yaml

from trireme.cluster.kubernetes import detect
from trireme.launch.kubernetes.render import header, render
from trireme.launch.kubernetes.source import read_source
from trireme.launch.kubernetes.spec import KubernetesJob
from trireme.launch.kubernetes.yaml_text import to_yaml

SCRIPT = b"import keras\r\n\tprint('{{ nasty }}')  \nno_line_feed = '\xc3\xa4'"
LEAST = ("--name", "train", "--image", "registry.example/train:1")


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_bytes(SCRIPT)
    return path


def trireme(*arguments: str, **environ: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "trireme", "render", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        timeout=60,
    )


def rendered(*arguments: str, **environ: str) -> list[dict]:
    result = trireme("--on", "kubernetes", *LEAST, *arguments, **environ)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stderr == b""
    return list(yaml.safe_load_all(result.stdout))


def test_every_option_reaches_the_job():
    result = trireme(
        *(
            "--on=kubernetes",
            "--name=train",
            "--image=registry.example/train:1",
            "--workers=4",
            "--servers=2",
        ),
        *("--gpus=2", "--cpu=4", "--memory=16Gi", "--backup-claim=claim", "--namespace=research"),
        *(
            "--node-selector=a=b",
            "--node-selector",
            "c=d",
            "--toleration=e=f:NoSchedule",
            "--toleration",
            "g",
        ),
        *(
            "--priority-class=high",
            "--queue=team-a",
            "--grace=30",
            "--max-restarts=9",
            "--jobset",
            "--backend=jax",
        ),
        *("train.py", "--epochs", "3", "--jobset"),
    )
    job = KubernetesJob(
        name="train",
        image="registry.example/train:1",
        source=read_source("train.py", ("--epochs", "3", "--jobset")),
        workers=4,
        servers=2,
        gpus=2,
        cpu="4",
        memory="16Gi",
        backup_claim="claim",
        namespace="research",
        node_selector=("a=b", "c=d"),
        tolerations=("e=f:NoSchedule", "g"),
        priority_class="high",
        queue="team-a",
        grace_s=30,
        max_restarts=9,
        jobset=True,
        backend="jax",
    )
    assert (result.stdout, result.stderr) == (to_yaml(render(job), header(job)).encode(), b"")
    untouched = {
        field.name
        for field in dataclasses.fields(job)
        if getattr(job, field.name) == field.default and field.name != "run_id"
    }
    assert untouched == {"backup", "backup_every"}, "give the other options here too"


def test_defaults():
    _, config_map, job = rendered("train.py")
    assert config_map["data"]["train.py"].encode() == SCRIPT
    assert job["spec"]["completions"] == 1
    environ = {
        entry["name"]: entry.get("value") for entry in job["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert environ["TRIREME_BACKEND"] == "tensorflow"
    known = {name: value for name, value in environ.items() if value is not None}
    assert detect(known | {"JOB_COMPLETION_INDEX": "0"}).num_workers == 1


def test_the_backend_is_the_one_keras_would_choose():
    _, _, job = rendered("train.py", KERAS_BACKEND="jax")
    assert {"name": "KERAS_BACKEND", "value": "jax"} in job["spec"]["template"]["spec"]["containers"][0][
        "env"
    ]


def test_object_storage_for_backups():
    _, _, job = rendered("--backup", "gs://bucket/a", "--backup-every", "50", "train.py")
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "TRIREME_BACKUP", "value": "gs://bucket/a"} in env
    assert {"name": "TRIREME_BACKUP_EVERY", "value": "50"} in env


def test_a_module_and_its_arguments():
    *_, job = rendered("-m", "package.train", "--name", "x", "-m", "y")
    main = job["spec"]["template"]["spec"]["containers"][0]
    assert main["command"][-2:] == ["-m", "package.train"]
    assert main["args"] == ["--name", "x", "-m", "y"]


def test_a_folder(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "part.py").write_text("part\n")
    _, config_map, _ = rendered("--folder", ".", "train.py")
    assert sorted(config_map["data"]) == ["package.part.py", "train.py"]


def test_overlays_in_their_order(tmp_path):
    for name, value in (("first", 1), ("second", 2)):
        (tmp_path / f"{name}.yaml").write_text(
            f"kind: Job\nspec: {{ttlSecondsAfterFinished: {value}, {name}: 1}}\n"
        )
    *_, job = rendered("--overlay", "first.yaml", "--overlay", "second.yaml", "train.py")
    assert job["spec"]["ttlSecondsAfterFinished"] == 2
    assert job["spec"]["first"] == job["spec"]["second"] == 1


def test_keys_are_printed_alone_and_others_each_time():
    line = ("--servers", "2", "--namespace", "research", "train.py")
    first, second = rendered("--keys", *line), rendered("--keys", *line)
    for documents in (first, second):
        assert [(one["kind"], one["metadata"]["name"]) for one in documents] == [
            ("Secret", "train-worker-keys"),
            ("Secret", "train-server-keys"),
        ]
        assert all(one["metadata"]["namespace"] == "research" for one in documents)
    assert first[0]["data"].keys() == second[0]["data"].keys() and first != second
    text = trireme("--on", "kubernetes", *LEAST, *line).stdout.decode()
    assert "with --keys prints the Secrets" in text
    assert not any(value in text for one in first for value in one["data"].values())


def test_bytes_do_not_depend_on_the_surroundings():
    texts = {
        trireme("--on=kubernetes", *LEAST, "train.py", **environ).stdout
        for environ in (
            {"LC_ALL": "C", "PYTHONUTF8": "0"},
            {"PYTHONIOENCODING": "latin-1"},
            {"PYTHONHASHSEED": "7"},
        )
    }
    assert len(texts) == 1
    assert SCRIPT.decode().splitlines()[-1] in texts.pop().decode()


def test_all_mistakes_at_once(tmp_path):
    (tmp_path / "broken.yaml").write_text("kind: [")
    result = trireme(
        *("--on", "mesos", "--name", "My Train", "--workers", "four", "--servers", "-1", "--memory", "16GB"),
        *("--overlay", "nix.yaml", "--overlay", "broken.yaml", "nix.py"),
    )
    assert result.returncode == 64 and result.stdout == b""
    said = result.stderr.decode()
    assert said.startswith("trireme: This job cannot run:\n")
    for mistake in (
        "--on 'mesos': expected --on kubernetes or --on slurm",
        "no script nix.py here",
        "--overlay nix.yaml cannot be read",
        "--overlay broken.yaml is no YAML",
        "--workers 'four': expected a whole number, like --workers 1",
        "--servers -1: expected a whole number from 0",
        "like --name my-train",
        "--image REGISTRY/NAME:TAG",
        "--memory 16Gi",
    ):
        assert mistake in said
    assert said.count("\n  - ") == 9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "add --on kubernetes"),
        (("--on=kubernetes", *LEAST), "add a script, or -m and a module's name"),
        (("--on=kubernetes", *LEAST, "-m"), "add a module's name after -m"),
        (
            ("--on=kubernetes", "--nmae", "train", "train.py"),
            "there is no option --nmae: did you mean --name?",
        ),
        (("--on=kubernetes", *LEAST, "--keys", "train.py"), "--keys says something only with --servers"),
        (("--on=slurm", "--keys", "train.py"), "--keys says something only with --on kubernetes"),
        (("--on=kubernetes", *LEAST, "--backup=gs://a", "--backup-claim=b", "train.py"), "leave one out"),
    ],
    ids=str,
)
def test_a_mistake_in_the_command(arguments, said):
    result = trireme(*arguments)
    assert result.returncode == 64 and result.stdout == b""
    assert said in result.stderr.decode()


def test_an_unknown_option_is_the_only_thing_said():
    """The word after it may be its value, so what follows cannot be judged."""
    said = trireme("--on=kubernetes", "--nmae", "train", "train.py").stderr.decode()
    assert said.count("\n  - ") == 1


def test_modules_that_stay_behind_are_named(tmp_path):
    (tmp_path / "train.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("")
    result = trireme("--on=kubernetes", *LEAST, "train.py")
    assert result.returncode == 0 and result.stdout
    assert "imports helper" in result.stderr.decode() and "--folder ." in result.stderr.decode()
    assert trireme("--on=kubernetes", *LEAST, "--folder=.", "train.py").stderr == b""


def test_without_pyyaml(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['yaml'] = None\n")
    result = trireme("--on=kubernetes", *LEAST, "train.py", PYTHONPATH=str(tmp_path))
    assert result.returncode == 64
    assert "pip install 'keras-trireme[kubernetes]'" in result.stderr.decode()
    assert "Traceback" not in result.stderr.decode()
