"""The variables of the pods that Trireme itself submits, as an Indexed Job or as a JobSet of them.

One pod template serves all pods of a role, so the pods share `TRIREME_CLUSTER`, and only the index that the
Job controller adds tells them apart.
"""

import json
from collections.abc import Mapping
from typing import Any

from trireme.cluster.addresses import counted_up
from trireme.cluster.cluster import REPLICAS_PER_WORKER, ROLE, RUN_ID, Cluster
from trireme.cluster.variables import Reader

CLUSTER = "TRIREME_CLUSTER"
INDEX = "JOB_COMPLETION_INDEX"
VARIABLES = (CLUSTER, INDEX, ROLE, RUN_ID, REPLICAS_PER_WORKER)
NEEDS = f"{CLUSTER} and {INDEX}, which the pods of `trireme run --on kubernetes` have"
ADVICE = (
    f'Expected {CLUSTER}={{"worker": {{"replicas": 4, "host": "train-{{index}}.train", "port": 29500}}}};'
    " `trireme render --on kubernetes` prints a whole manifest."
)
ROLES = {"worker": "worker", "server": "server", "ps": "server", "evaluator": "evaluator"}
SETTINGS = ("replicas", "host", "port", "workers_per_pod")


def detect(environ: Mapping[str, str]) -> Cluster | None:
    """The pods of a run, or None outside of them.

    A pod that holds several workers (one for each of its GPUs) is its first worker; the others follow
    it in rank order, on the same host, with the ports that follow.

    Raises:
        ConfigurationError: variables are missing or malformed; the message lists all of them.
    """
    if CLUSTER not in environ:
        return None
    reader = Reader(environ, "Trireme's pods", ADVICE)
    pods = _pods(reader, environ[CLUSTER])
    role = _role(reader, environ.get(ROLE, "worker"), pods)
    index = reader.number(INDEX)
    per_worker = reader.number(REPLICAS_PER_WORKER, minimum=1, default=1)
    reader.check()
    if index >= len(pods[role]):
        reader.wrong(f"{INDEX} is {index}, but {CLUSTER} has {len(pods[role])} pods of role {role}")
        reader.check()
    return Cluster(
        workers=_flat(pods["worker"]),
        servers=_flat(pods.get("server", [])),
        evaluators=_flat(pods.get("evaluator", [])),
        role=role,
        rank=sum(map(len, pods[role][:index])),
        replicas_per_worker=per_worker,
        run_id=environ.get(RUN_ID, ""),
        source="kubernetes",
    )


Pods = list[tuple[str, ...]]


def _flat(pods: Pods) -> tuple[str, ...]:
    return tuple(address for pod in pods for address in pod)


def _pods(reader: Reader, text: str) -> dict[str, Pods]:
    """The addresses in each pod, by role."""
    try:
        spec = json.loads(text)
    except json.JSONDecodeError as error:
        reader.wrong(f"{CLUSTER} is no JSON: {error}")
        return {}
    if not isinstance(spec, dict):
        reader.wrong(f"{CLUSTER} is {text}: expected an object of roles")
        return {}
    pods = {}
    for name, entry in spec.items():
        if name not in ROLES:
            reader.wrong(f"{CLUSTER} has the unknown role {name!r}: expected {', '.join(ROLES)}")
        elif _is_entry(reader, name, entry):
            pods[ROLES[name]] = _pods_of_role(entry)
    if "worker" not in spec:
        reader.wrong(f'{CLUSTER} has no "worker": expected at least one to train')
    return pods


def _pods_of_role(entry: dict[str, Any]) -> Pods:
    return [
        counted_up(
            entry["host"].replace("{index}", str(index)), entry["port"], entry.get("workers_per_pod", 1)
        )
        for index in range(entry["replicas"])
    ]


def _is_entry(reader: Reader, name: str, entry: object) -> bool:
    """Whether a role's entry is whole; what is not, the reader is told."""
    if not isinstance(entry, dict):
        reader.wrong(
            f"{CLUSTER}.{name} is {json.dumps(entry)}: expected an object with {', '.join(SETTINGS)}"
        )
        return False
    problems = [f"has the unknown setting {key!r}" for key in entry if key not in SETTINGS]
    for key in ("replicas", "port", "workers_per_pod"):
        value = entry.get(key, 1 if key == "workers_per_pod" else None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            problems.append(f"has {key} {json.dumps(value)}: expected a whole number of at least 1")
    host = entry.get("host")
    if not isinstance(host, str) or ("{index}" not in host and entry.get("replicas") != 1):
        problems.append(f"has host {json.dumps(host)}: expected a name with {{index}} in it")
    for problem in problems:
        reader.wrong(f"{CLUSTER}.{name} {problem}")
    return not problems


def _role(reader: Reader, name: str, pods: dict[str, Pods]) -> str:
    if name not in ROLES:
        reader.wrong(f"{ROLE} is {name!r}: expected one of {', '.join(ROLES)}")
    elif pods and ROLES[name] not in pods:
        reader.wrong(f"{ROLE} is {name}, but {CLUSTER} has only {', '.join(pods)}")
    return ROLES.get(name, "worker")
