"""Names, labels, images, selectors and tolerations: what passes is what Kubernetes takes."""

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kubernetes.jobs import job
from trireme.errors import InvalidJob
from trireme.launch.kubernetes.names import (
    image_problems,
    label_problems,
    parse_node_selector,
    parse_toleration,
    run_name_problems,
    subdomain_problems,
)
from trireme.launch.kubernetes.render import render

LETTERS = string.ascii_lowercase
NAME_CHARACTERS = LETTERS + string.digits + "-"
near_names = st.text(st.sampled_from(NAME_CHARACTERS + "_.A é\n"), max_size=70)


def is_service_name(name: str) -> bool:
    """The rule for names of Services in words rather than in a pattern."""
    return (
        0 < len(name) <= 63
        and set(name) <= set(NAME_CHARACTERS)
        and name[0] in LETTERS
        and not name.endswith("-")
    )


@given(near_names | st.text(st.sampled_from(NAME_CHARACTERS), max_size=70))
@example("train\n")
@example("train-")
@example("1train")
@example("a" * 63)
@example("a" * 64)
def test_run_names(name):
    assert (run_name_problems(name, "") == []) == is_service_name(name)


@given(near_names.filter(bool), st.sampled_from(["-0", "-worker-99999", "-server-0-9-abcde"]))
def test_the_name_in_a_message_is_one_to_type(name, ending):
    for problem in run_name_problems(name, ending):
        proposed = problem.rpartition("--name ")[2]
        assert run_name_problems(proposed, ending) == [], problem


@given(
    st.integers(1, 100_000),
    st.integers(0, 100_000),
    st.booleans(),
    st.text(st.sampled_from(LETTERS), min_size=1, max_size=63),
)
@example(1, 0, False, "a" * 61)
@example(11, 0, False, "a" * 61)
@example(10, 0, False, "a" * 61)
@example(10, 2, True, "a" * 46)
def test_every_pod_has_a_host_name(workers, servers, jobset, name):
    """Host names have at most 63 characters, JobSet adds six to a pod's name, and the limit is no lower than that."""
    added = 6 if jobset else 0
    names = [
        "-".join(
            [
                name,
                *([role] if jobset or servers else []),
                *(["0"] if jobset else []),
                str(count - 1),
            ]
        )
        for role, count in (("worker", workers), ("server", servers))
        if count
    ]
    fits = max(map(len, names)) + added <= 63
    try:
        made = job(name=name, workers=workers, servers=servers, jobset=jobset)
    except InvalidJob as error:
        assert not fits, error
        assert all("--name" in mistake for mistake in error.mistakes)
    else:
        assert fits
        assert [made.pod_name(role, count - 1) for role, count in made.roles.items()] == names


@given(st.text(st.sampled_from(LETTERS), min_size=55, max_size=63), st.booleans())
def test_names_and_label_values_of_all_objects_fit(name, jobset):
    try:
        objects = render(job(name=name, jobset=jobset))
    except InvalidJob:
        return
    for item in objects:
        assert len(item["metadata"]["name"]) <= (253 if item["kind"] == "ConfigMap" else 63)
        assert all(len(value) <= 63 for value in item["metadata"]["labels"].values())


@pytest.mark.parametrize(
    ("name", "proposed"),
    [
        ("My_Train", "my-train"),
        ("train.v2", "train-v2"),
        ("42nd run", "nd-run"),
        ("-train-", "train"),
        ("Größe", "gr-e"),
        ("漢字", "train"),
    ],
)
def test_a_name_near_the_wrong_one_is_proposed(name, proposed):
    (problem,) = run_name_problems(name, "-0")
    assert problem.endswith(f"like --name {proposed}")


@given(near_names)
@example("1a")
@example("a" * 64)
def test_labels(name):
    right = (
        0 < len(name) <= 63
        and set(name) <= set(NAME_CHARACTERS)
        and not name.startswith("-")
        and not name.endswith("-")
    )
    assert (label_problems("--namespace", name) == []) == right


@pytest.mark.parametrize(
    ("name", "is_right"),
    [
        ("train-ckpt", True),
        ("a.b.c", True),
        ("a" * 253, True),
        ("a" * 254, False),
        ("a..b", False),
        (".a", False),
    ]
    + [("A", False), ("a_b", False), ("a.", False), ("a.-b", False), ("", False)],
)
def test_subdomains(name, is_right):
    assert (subdomain_problems("--backup-claim", name) == []) == is_right


@pytest.mark.parametrize(
    "image",
    [
        "train",
        "train:1",
        "library/python:3.11-slim",
        "registry.example/train:1",
        "registry.example:5000/team/train:v1.2_3",
        "Registry.example/train",
        "localhost:5000/train",
        "eu.gcr.io/my-project/a__b/c.d@sha256:" + "0a" * 32,
        "train:1@sha256:" + "0" * 64,
    ],
)
def test_images(image):
    assert image_problems(image) == []


@pytest.mark.parametrize(
    "image",
    [
        "Train:1",
        "registry.example/Train",
        "train:",
        "train:a b",
        " train",
        "https://registry.example/train",
        "a//b",
    ]
    + ["train:1\n", "train@sha256:12", "-train", "train:" + "a" * 129, "registry.example/"],
)
def test_what_is_no_image(image):
    (problem,) = image_problems(image)
    assert repr(image) in problem and "--image REGISTRY/NAME:TAG" in problem


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("pool=spot", ("pool", "spot")),
        ("nvidia.com/gpu.product=NVIDIA-H200", ("nvidia.com/gpu.product", "NVIDIA-H200")),
        ("topology.kubernetes.io/zone=", ("topology.kubernetes.io/zone", "")),
    ],
)
def test_node_selectors(text, parsed):
    assert parse_node_selector(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "pool",
        "=spot",
        "",
        "po ol=spot",
        "pool=sp ot",
        "/pool=a",
        "Example.com/pool=a",
        "pool=" + "a" * 64,
        "a/b/c=d",
    ]
    + ["pool=-a", "pool=a=b", "pool=a\n"],
)
def test_what_is_no_node_selector(text):
    with pytest.raises(ValueError, match="--node-selector topology"):
        parse_node_selector(text)


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("spot", {"key": "spot", "operator": "Exists"}),
        ("spot:NoExecute", {"key": "spot", "operator": "Exists", "effect": "NoExecute"}),
        ("a.b/c=d", {"key": "a.b/c", "operator": "Equal", "value": "d"}),
        ("a=b:NoSchedule", {"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}),
        ("a=:PreferNoSchedule", {"key": "a", "operator": "Equal", "value": "", "effect": "PreferNoSchedule"}),
    ],
)
def test_tolerations(text, entry):
    assert parse_toleration(text).to_object() == entry


@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        ("gpu:noschedule", "gpu:NoSchedule"),
        ("a=b:NOEXECUTE", "a=b:NoExecute"),
        ("a:", "dedicated=training:NoSchedule"),
        ("a:Never", "dedicated=training:NoSchedule"),
        ("", "dedicated=training:NoSchedule"),
        ("a b", "dedicated=training:NoSchedule"),
        ("=b", "dedicated=training:NoSchedule"),
        ("a:NoSchedule:NoExecute", "dedicated=training:NoSchedule"),
    ],
)
def test_what_is_no_toleration(text, proposed):
    with pytest.raises(ValueError) as caught:
        parse_toleration(text)
    assert str(caught.value).endswith(f"like --toleration {proposed}")
    parse_toleration(proposed)
