"""A user's YAML laid over what is rendered."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.jobs import JOBS, job
from trireme.errors import InvalidJob
from trireme.launch.kubernetes.overlay import apply_overlays
from trireme.launch.kubernetes.render import render

BASE = {
    "kind": "Job",
    "apiVersion": "batch/v1",
    "metadata": {"name": "a", "labels": {"x": "1"}},
    "spec": {
        "completions": 2,
        "template": {
            "containers": [{"name": "main", "env": [{"name": "A", "value": "1"}], "args": ["1", "2"]}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "tolerations": [{"key": "gpu"}],
        },
    },
}


def merged(overlay: dict) -> dict:
    (result,) = apply_overlays([BASE], [{"kind": "Job"} | overlay])
    return result


def spec_of(template: dict) -> dict:
    return merged({"spec": {"template": template}})["spec"]["template"]


def test_mappings_are_merged_at_every_depth():
    result = merged({"metadata": {"labels": {"y": "2", "x": "3"}}, "spec": {"suspend": True}})
    assert result["metadata"] == {"name": "a", "labels": {"x": "3", "y": "2"}}
    assert result["spec"] == BASE["spec"] | {"suspend": True}


def test_null_removes():
    result = merged({"metadata": {"labels": {"x": None, "never there": None}}, "new": {"a": None, "b": 1}})
    assert result["metadata"]["labels"] == {}
    assert result["new"] == {"b": 1}


def test_lists_of_named_things_are_merged_by_name():
    container = {"name": "main", "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}]}
    side_car = {"name": "side-car", "image": "x"}
    assert spec_of({"containers": [side_car, container]})["containers"] == [
        {
            "name": "main",
            "env": [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}],
            "args": ["1", "2"],
        },
        side_car,
    ]


def test_mounts_are_told_apart_by_their_path():
    mounts = [{"name": "v", "mountPath": "/other"}, {"name": "w", "mountPath": "/v"}]
    assert spec_of({"volumeMounts": mounts})["volumeMounts"] == [
        {"name": "w", "mountPath": "/v"},
        {"name": "v", "mountPath": "/other"},
    ]


def test_tolerations_are_added_and_other_lists_replaced():
    tolerations = spec_of({"tolerations": [{"key": "spot"}, {"key": "gpu"}]})["tolerations"]
    assert tolerations == [{"key": "gpu"}, {"key": "spot"}]
    assert spec_of({"containers": [{"name": "main", "args": ["3"]}]})["containers"][0]["args"] == ["3"]


def test_the_base_stays_as_it_was():
    before = copy.deepcopy(BASE)
    merged({"metadata": {"labels": {"x": None}}, "spec": {"template": {"tolerations": [{"key": "b"}]}}})
    assert before == BASE


def test_overlays_come_one_after_the_other():
    overlays = [{"kind": "Job", "metadata": {"labels": {"x": value}}} for value in ("2", "3")]
    assert apply_overlays([BASE], overlays)[0]["metadata"]["labels"] == {"x": "3"}


@pytest.mark.parametrize(
    ("selector", "changed"),
    [
        ({"kind": "Job"}, ["train-worker", "train-server"]),
        ({"kind": "Job", "metadata": {"name": "train-server"}}, ["train-server"]),
        ({"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": "train-worker"}}, ["train-worker"]),
        ({"kind": "Service"}, ["train"]),
    ],
    ids=str,
)
def test_which_objects_an_overlay_is_for(selector, changed):
    objects = render(job(servers=1))
    result = apply_overlays(objects, [selector | {"spec": {"extra": 1}}])
    assert [item["metadata"]["name"] for item in result if item.get("spec", {}).get("extra")] == changed


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        (
            {"kind": "Deployment"},
            "Deployment fits none of the objects of this run, which are Service/train, ",
        ),
        ({"kind": "Job", "metadata": {"name": "x"}}, "Job/x fits none"),
        ({"kind": "Job", "apiVersion": "batch/v2"}, "fits none"),
        ({"kind": "Job", "spec": 5}, "Job/train.spec is a mapping, and the overlay has a value there"),
        ({"kind": "Job", "spec": []}, "Job/train.spec is a mapping, and the overlay has a list there"),
        (
            {"kind": "Job", "spec": {"template": {"spec": {"containers": {}}}}},
            "containers is a list, and the overlay has",
        ),
        ({"kind": "Job", "spec": {"completionMode": {"a": 1}}}, "completionMode is 'Indexed' and cannot be"),
        ({"kind": "Job", "spec": {"completions": 8}}, "Job/train.spec.completions is 1 and cannot be 8"),
        ({"kind": "Job", "spec": {"parallelism": None}}, "use --workers and --servers"),
        ({"kind": "Job", "spec": {"template": {"spec": {"subdomain": "x"}}}}, "use --name"),
        (
            {"kind": "Job", "spec": {"volumes": [{"name": "x", "emptyDir": {}}, {"name": "x"}]}},
            "Job/train.spec.volumes has 2 entries whose name is 'x'",
        ),
        (
            {"kind": "Job", "spec": {"volumes": [{"emptyDir": {}}]}},
            "an entry of Job/train.spec.volumes has no name",
        ),
        ({"kind": "Job", "spec": {"podReplacementPolicy": "TerminatingOrFailed"}}, "two live pods"),
    ],
    ids=str,
)
def test_what_an_overlay_may_not(overlay, said):
    with pytest.raises(InvalidJob) as caught:
        apply_overlays(render(job()), [overlay])
    (mistake,) = caught.value.mistakes
    assert said in mistake


def test_all_mistakes_at_once():
    overlays = [{"kind": "Pod"}, {"kind": "Job", "spec": {"completions": 8, "parallelism": 8}}]
    with pytest.raises(InvalidJob) as caught:
        apply_overlays(render(job()), overlays)
    assert len(caught.value.mistakes) == 3


def test_saying_what_is_so_is_no_mistake():
    objects = render(job(workers=4))
    assert apply_overlays(objects, [{"kind": "Job", "spec": {"completions": 4}}]) == objects


def test_a_jobset_is_merged_by_the_names_of_its_jobs():
    container = {"name": "main", "image": "other"}
    jobs = [{"name": "server", "template": {"spec": {"template": {"spec": {"containers": [container]}}}}}]
    *_, jobset = apply_overlays(
        render(JOBS["jobset_with_servers_in_a_queue"]), [{"kind": "JobSet", "spec": {"replicatedJobs": jobs}}]
    )
    images = [
        one["template"]["spec"]["template"]["spec"]["containers"][0]["image"]
        for one in jobset["spec"]["replicatedJobs"]
    ]
    assert images == ["other", "registry.example/train:1"]


plain = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2) | st.booleans(),
    lambda values: (
        st.dictionaries(st.sampled_from(["a", "b", "env", "tolerations", "spec"]), values, max_size=3)
        | st.lists(
            st.builds(lambda name, value: {"name": name, "v": value}, st.sampled_from("xyz"), values),
            max_size=3,
            unique_by=lambda entry: entry["name"],
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from("abc"), plain, max_size=3))
def test_an_overlay_is_idempotent_and_keeps_the_rest(fields):
    overlay = {"kind": "Job", "spec": fields}
    once = apply_overlays([BASE], [overlay])
    assert apply_overlays(once, [overlay]) == once
    assert once[0]["spec"]["template"] == BASE["spec"]["template"]
    assert once[0]["metadata"] == BASE["metadata"]
