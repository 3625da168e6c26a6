"""`TF_CONFIG`, the JSON by which TensorFlow's users and cluster operators describe a cluster."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from trireme.cluster.addresses import EXPECTED, UNKNOWN, duplicates, is_address
from trireme.cluster.cluster import Cluster
from trireme.errors import ConfigurationError

TF_CONFIG = "TF_CONFIG"
VARIABLES = (TF_CONFIG,)
NEEDS = f"{TF_CONFIG} with a cluster and a task"

CHIEFS = ("chief", "master")
TASK_TYPES = (*CHIEFS, "worker", "ps", "evaluator")
EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
    " (the index is 1 on the second worker)"
)


def detect(environ: Mapping[str, str]) -> Cluster | None:
    """The cluster in `TF_CONFIG`, or None where it is not set.

    The chief (or `master`, its older name) is worker 0 and the workers follow it. Without one, worker 0
    is the chief. Servers are the `ps` tasks. An evaluator need not be listed in the cluster.

    Raises:
        ConfigurationError: the JSON is malformed or contradicts itself; the message lists everything wrong.
    """
    text = environ.get(TF_CONFIG, "").strip()
    if not text:
        return None
    spec = _parsed(text)
    problems: list[str] = []
    tasks = _tasks(spec, problems)
    task_type, index = _task(spec, tasks, problems)
    if problems:
        raise _error(text, problems)
    chief = [address for name in CHIEFS for address in tasks.get(name, [])]
    return Cluster(
        workers=(*chief, *tasks.get("worker", [])),
        servers=tuple(tasks.get("ps", [])),
        evaluators=_evaluators(tasks, task_type, index),
        role={"ps": "server", "evaluator": "evaluator"}.get(task_type, "worker"),
        rank=index + len(chief) if task_type == "worker" else index,
        source=TF_CONFIG,
    )


def _parsed(text: str) -> dict[str, Any]:
    try:
        spec = json.loads(text)
    except json.JSONDecodeError as error:
        raise _error(text, [f"it is no JSON: {error}"]) from None
    if not isinstance(spec, dict):
        raise _error(text, [f"it is a JSON {type(spec).__name__}: expected an object"])
    return spec


def _tasks(spec: dict[str, Any], problems: list[str]) -> dict[str, list[str]]:
    """The addresses by task type; what is wrong with them is added to `problems`."""
    cluster = spec.get("cluster")
    if not isinstance(cluster, dict) or not any(cluster.values()):
        problems.append(
            f'"cluster" is {json.dumps(cluster)}: expected an object of task types and their addresses; '
            f"for a run on this machine alone, `unset {TF_CONFIG}`"
        )
        return {}
    tasks = {}
    for name, addresses in cluster.items():
        if name not in TASK_TYPES:
            problems.append(f'"cluster" has the unknown task type {json.dumps(name)}{_instead_of(name)}')
        elif not isinstance(addresses, list):
            problems.append(f'"cluster"."{name}" is {json.dumps(addresses)}: expected a list of host:port')
        else:
            tasks[name] = addresses
    problems += _address_problems(tasks)
    return tasks


def _address_problems(tasks: dict[str, list[str]]) -> list[str]:
    problems = [
        f'"cluster"."{name}"[{index}] is {json.dumps(address)}: {EXPECTED}'
        for name, addresses in tasks.items()
        for index, address in enumerate(addresses)
        if not is_address(address)
    ]
    for address in duplicates(address for addresses in tasks.values() for address in addresses):
        problems.append(f'"cluster" has the address "{address}" more than once: expected one for each task')
    chiefs = [address for name in CHIEFS for address in tasks.get(name, [])]
    if len(chiefs) > 1:
        problems.append(f'"cluster" has {len(chiefs)} chiefs, {json.dumps(chiefs)}: expected one at most')
    if not chiefs and not tasks.get("worker"):
        problems.append('"cluster" has neither "worker" nor "chief": expected at least one of them to train')
    return problems


def _task(spec: dict[str, Any], tasks: dict[str, list[str]], problems: list[str]) -> tuple[str, int]:
    """The type and the index of this process; what is wrong with them is added to `problems`."""
    task = spec.get("task")
    if not isinstance(task, dict) or "type" not in task or "index" not in task:
        problems.append(
            f'"task" is {json.dumps(task)}: expected which task this process is, like '
            '{"type": "worker", "index": 0}'
        )
        return "worker", 0
    task_type, index = task["type"], _index(task["index"])
    if task_type not in TASK_TYPES:
        problems.append(f'"task"."type" is {json.dumps(task_type)}{_instead_of(task_type)}')
    elif index is None:
        problems.append(f'"task"."index" is {json.dumps(task["index"])}: expected a whole number, 0 or more')
    elif task_type != "evaluator" or tasks.get("evaluator"):
        problems += _range_problems(task_type, index, len(tasks.get(task_type, [])))
    return str(task_type), index or 0


def _range_problems(task_type: str, index: int, count: int) -> list[str]:
    if index < count:
        return []
    have = f'"cluster" has {count} of type "{task_type}"'
    if count == 0:
        return [f'"task" is "{task_type}" {index}, but {have}: list its address there']
    return [f'"task"."index" is {index}, but {have}: expected 0 to {count - 1}']


def _index(value: object) -> int | None:
    """The index as a number. Templates often write it as a string."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _evaluators(tasks: dict[str, list[str]], task_type: str, index: int) -> tuple[str, ...]:
    listed = tasks.get("evaluator", [])
    if task_type == "evaluator" and not listed:
        return (UNKNOWN,) * (index + 1)
    return tuple(listed)


def _instead_of(name: object) -> str:
    near = get_close_matches(str(name), TASK_TYPES, n=1)
    hint = f' (did you mean "{near[0]}"?)' if near else ""
    return f"{hint}: expected one of {', '.join(TASK_TYPES)}"


def _error(text: str, problems: list[str]) -> ConfigurationError:
    lines = [f"{TF_CONFIG} describes no cluster:", *problems]
    return ConfigurationError(
        "\n  - ".join(lines) + f"\nIts value is {text}\nExpected, for example: {EXAMPLE}"
    )
