import json

import pytest

from trireme.cluster.cluster import Cluster
from trireme.cluster.tf_config import detect
from trireme.errors import ConfigurationError


def config(cluster, task_type="worker", index=0, **more):
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}, **more})
    }


TWO = {"worker": ["a:1", "b:1"]}
FULL = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:1", "q:1"], "evaluator": ["e:1"]}
FULL_CLUSTER = {"workers": ("c:1", "a:1", "b:1"), "servers": ("p:1", "q:1"), "evaluators": ("e:1",)}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (config(TWO), Cluster(workers=("a:1", "b:1"), rank=0)),
        (config(TWO, index=1), Cluster(workers=("a:1", "b:1"), rank=1)),
        # Templates write the index as text.
        (config(TWO, index="1"), Cluster(workers=("a:1", "b:1"), rank=1)),
        (config(FULL, "chief"), Cluster(**FULL_CLUSTER, rank=0)),
        # The workers follow the chief.
        (config(FULL, "worker", 0), Cluster(**FULL_CLUSTER, rank=1)),
        (config(FULL, "worker", 1), Cluster(**FULL_CLUSTER, rank=2)),
        (config(FULL, "ps", 1), Cluster(**FULL_CLUSTER, role="server", rank=1)),
        (config(FULL, "evaluator"), Cluster(**FULL_CLUSTER, role="evaluator", rank=0)),
        # `master` is what the chief was called before.
        (config({"master": ["m:1"], "worker": ["a:1"]}, "master"), Cluster(workers=("m:1", "a:1"))),
        (config({"master": ["m:1"], "worker": ["a:1"]}, "worker"), Cluster(workers=("m:1", "a:1"), rank=1)),
        (config({"chief": ["c:1"]}, "chief"), Cluster(workers=("c:1",))),
        (config({"chief": ["c:1"], "worker": []}, "chief"), Cluster(workers=("c:1",))),
        # TensorFlow lets an evaluator be absent from the cluster it watches.
        (config(TWO, "evaluator"), Cluster(workers=("a:1", "b:1"), evaluators=("?",), role="evaluator")),
        (
            config(TWO, "evaluator", 1),
            Cluster(workers=("a:1", "b:1"), evaluators=("?", "?"), role="evaluator", rank=1),
        ),
        # Platforms add fields of their own.
        (config(TWO, environment="cloud", rpc_layer="grpc"), Cluster(workers=("a:1", "b:1"))),
        (config({"worker": ["[fd00::1]:1", "[fd00::2]:1"]}), Cluster(workers=("[fd00::1]:1", "[fd00::2]:1"))),
        ({}, None),
        ({"TF_CONFIG": ""}, None),
        ({"TF_CONFIG": "  \n"}, None),
    ],
)
def test_detect(environ, expected):
    cluster = detect(environ)
    assert cluster == expected
    assert cluster is None or cluster.source == "TF_CONFIG"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{'cluster': 1}", ["no JSON", "line 1 column 2", "{'cluster': 1}"]),
        ('{"cluster": {', ["no JSON"]),
        ("[1]", ["JSON list", "expected an object"]),
        ("3", ["JSON int"]),
        ("{}", ['"cluster" is null', "unset TF_CONFIG", '"task" is null']),
        ('{"cluster": {}, "task": {"type": "worker", "index": 0}}', ['"cluster" is {}', "unset TF_CONFIG"]),
        ('{"cluster": {"worker": []}, "task": {"type": "worker", "index": 0}}', ['"cluster" is']),
        ('{"cluster": ["a:1"], "task": {"type": "worker", "index": 0}}', ['"cluster" is ["a:1"]']),
        ('{"cluster": {"worker": ["a:1"]}}', ['"task" is null', '{"type": "worker", "index": 0}']),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}', ['"task" is {"type": "worker"}']),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"index": 0}}', ['"task" is {"index": 0}']),
        ('{"cluster": {"worker": ["a:1"]}, "task": "worker"}', ['"task" is "worker"']),
    ],
)
def test_a_malformed_value_is_shown_with_what_is_expected(text, words):
    with pytest.raises(ConfigurationError) as error:
        detect({"TF_CONFIG": text})
    for word in [*words, text, "Expected, for example"]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (config({"wroker": ["a:1"]}), ['"wroker"', 'did you mean "worker"?', "evaluator"]),
        (config({"tpu_gang": ["a:1"], "worker": ["b:1"]}), ['"tpu_gang"', "expected one of"]),
        (config(TWO, "wrker"), ['"task"."type" is "wrker"', 'did you mean "worker"?']),
        (config(TWO, ["worker"]), ['"task"."type" is ["worker"]']),
        (config(TWO, None), ['"task"."type" is null']),
        (config(TWO, index=2), ['"task"."index" is 2', "has 2", "0 to 1"]),
        (config(TWO, index=-1), ['"task"."index" is -1', "0 or more"]),
        (config(TWO, index="-1"), ['"task"."index" is "-1"']),
        (config(TWO, index=1.0), ['"task"."index" is 1.0']),
        (config(TWO, index=True), ['"task"."index" is true']),
        (config(TWO, index="²"), ['"task"."index"']),
        (config(TWO, "ps"), ['"ps" 0', "list its address"]),
        (config(FULL, "evaluator", 1), ['"task"."index" is 1']),
        (config({"worker": ["a:1", "a:1"]}), ['"a:1" more than once']),
        # Also across task types.
        (config({"chief": ["a:1"], "worker": ["a:1"]}), ['"a:1" more than once']),
        (config({"worker": ["a", "b:1"]}), ['"cluster"."worker"[0] is "a"', "host:port"]),
        (config({"worker": ["a:"]}), ['"cluster"."worker"[0] is "a:"']),
        (config({"worker": [7]}), ['"cluster"."worker"[0] is 7']),
        (config({"worker": [None]}), ['"cluster"."worker"[0] is null']),
        (config({"worker": "a:1"}), ['"cluster"."worker" is "a:1"', "expected a list"]),
        (config({"worker": {"0": "a:1"}}), ["expected a list"]),
        (config({"chief": ["a:1", "b:1"]}, "chief"), ["2 chiefs"]),
        (config({"chief": ["a:1"], "master": ["b:1"]}, "chief"), ["2 chiefs"]),
        (config({"ps": ["a:1"]}, "ps"), ['neither "worker" nor "chief"']),
    ],
)
def test_a_contradiction_is_named_with_its_value(environ, words):
    with pytest.raises(ConfigurationError) as error:
        detect(environ)
    for word in [*words, environ["TF_CONFIG"]]:
        assert word in str(error.value)


def test_all_contradictions_are_told_at_once():
    with pytest.raises(ConfigurationError) as error:
        detect(config({"worker": ["a", "b:1", "b:1"], "pss": ["c:1"]}, "worker", 9))
    for word in ('[0] is "a"', '"b:1" more than once', '"pss"', '"task"."index" is 9'):
        assert word in str(error.value)
