"""Manifests byte for byte, and against the schemas of Kubernetes and JobSet."""

import difflib
import os
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

from tests.kubernetes.jobs import GOLDEN, JOBS, NAMES, job, manifest
from trireme.launch.kubernetes.render import render

# Kubernetes knows `backoffLimitPerIndex` from 1.29 on without feature gates, `successPolicy` from 1.30 on.
VERSIONS = [f"1.{minor}" for minor in range(29, 38)]


@pytest.mark.parametrize("name", NAMES)
def test_golden(name):
    text, golden = manifest(name), (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    difference = "".join(
        difflib.unified_diff(
            golden.splitlines(True), text.splitlines(True), f"golden/{name}.yaml", "rendered"
        )
    )
    assert text == golden, f"meant? python -m tests.kubernetes.jobs\n{difference}"


def test_every_golden_file_belongs_to_a_job():
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(NAMES)


def test_bytes_do_not_depend_on_the_hash_seed():
    code = "from tests.kubernetes.jobs import NAMES, manifest; print(''.join(map(manifest, NAMES)))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {"".join(map(manifest, NAMES)) + "\n"}


def validated_as(document: dict) -> list[dict]:
    """The objects of core Kubernetes in a document: a JobSet holds templates of Jobs."""
    if document["kind"] != "JobSet":
        return [document]
    return [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": one["name"]}, **one["template"]}
        for one in document["spec"]["replicatedJobs"]
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_kubernetes_accepts_every_field(name, version):
    documents = [one for whole in yaml.safe_load_all(manifest(name)) for one in validated_as(whole)]
    assert documents
    if version == "1.29":
        documents = [one for one in documents if "successPolicy" not in one.get("spec", {})]
    for document in documents:
        assert kubernetes_validate.validate(document, version, strict=True) == version


def test_servers_need_kubernetes_1_30():
    worker = next(one for one in render(job(servers=1)) if "successPolicy" in one.get("spec", {}))
    with pytest.raises(kubernetes_validate.ValidationError, match="successPolicy"):
        kubernetes_validate.validate(worker, "1.29", strict=True)


def test_a_misspelt_field_is_refused():
    broken = render(job())[-1]
    broken["spec"]["podFailurePolicies"] = broken["spec"].pop("podFailurePolicy")
    with pytest.raises(kubernetes_validate.ValidationError, match="podFailurePolicies"):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("name", [name for name, one in JOBS.items() if one.jobset])
def test_jobset_accepts_every_field(name):
    jobset = render(JOBS[name])[-1]
    assert lost(jobset, JobsetV1alpha2JobSet.from_dict(jobset).to_dict()) == []


def test_a_field_that_jobset_does_not_know_is_noticed():
    jobset = render(job(jobset=True))[-1]
    jobset["spec"]["failurePolicy"]["maxRestart"] = 3
    assert lost(jobset, JobsetV1alpha2JobSet.from_dict(jobset).to_dict()) == [
        ".spec.failurePolicy.maxRestart"
    ]


def lost(wanted: object, kept: object, path: str = "") -> list[str]:
    """Paths of what was written and is not read back. A model adds defaults and drops what it does not know."""
    if isinstance(wanted, dict) and isinstance(kept, dict):
        return [way for key, value in wanted.items() for way in lost(value, kept.get(key), f"{path}.{key}")]
    if isinstance(wanted, list) and isinstance(kept, list) and len(wanted) == len(kept):
        return [way for pair in zip(wanted, kept, strict=True) for way in lost(*pair, path)]
    return [] if wanted == kept else [path]
