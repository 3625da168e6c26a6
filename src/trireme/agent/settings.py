"""Who an agent is and what it goes by: from its job and its environment, all mistakes at once."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from trireme.agent.channel import key_of
from trireme.agent.rules import Identity, Rules
from trireme.cluster.addresses import EXPECTED, UNKNOWN, agreed_port, host_of, is_address, join, port_of
from trireme.cluster.cluster import RUN_ID
from trireme.errors import ConfigurationError
from trireme.launch.job import Job
from trireme.launch.variables import GENERATION, RENDEZVOUS_TIMEOUT_S, RESTARTED_BY, TOKEN, duration_s
from trireme.recovery.policy import RestartPolicy

RENDEZVOUS = "TRIREME_RENDEZVOUS"
HEARTBEAT_S = "TRIREME_HEARTBEAT_S"
POD = "TRIREME_POD"
NODE = "TRIREME_NODE"

BY_AGENT, BY_JOBSET = "agent", "jobset"

DEFAULT_TIMEOUT_S = 600.0
DEFAULT_HEARTBEAT_S = 5.0
# Behind the ports that workers of one machine count on from.
_PORT_AFTER_WORKERS = 63


@dataclass(frozen=True)
class Settings:
    """What an agent needs besides its job.

    Attributes:
        host: where the others find the rendezvous.
        port: the rendezvous' port; 0 for a free one, when there is no other agent.
        key: what all agents of the run prove to each other that they know.
        expected: the addresses of this agent's workers, as far as the environment tells them.
        is_pod: whether this is a pod, whose log is all that others see of it.
    """

    identity: Identity
    rules: Rules
    host: str
    port: int
    key: bytes = field(repr=False)
    expected: tuple[str, ...]
    is_pod: bool = False

    @property
    def is_chiefs(self) -> bool:
        """Whether this agent serves the rendezvous."""
        return self.identity.index == 0


def settings_of(
    job: Job,
    environ: Mapping[str, str],
    *,
    rendezvous: str | None = None,
    machines: int | None = None,
    machine: int | None = None,
) -> Settings:
    """The settings of the agent that runs `job`.

    Args:
        job: what this agent starts. With a cluster, every other agent is expected to start as many workers.
        environ: the agent's environment.
        rendezvous: `host:port`, before `TRIREME_RENDEZVOUS`.
        machines: how many agents there are, where no cluster tells it.
        machine: which of them this one is, from 0.

    Raises:
        ConfigurationError: the agents could not find each other; the message lists everything wrong.
    """
    problems: list[str] = []
    num_agents, index = _place(job, machines, machine, problems)
    run_id, token = _run(job, environ, num_agents, problems)
    host, port = _rendezvous(job, rendezvous or environ.get(RENDEZVOUS, ""), run_id, num_agents, problems)
    rules = Rules(
        num_agents=num_agents,
        run_id=run_id,
        timeout_s=_seconds(environ, RENDEZVOUS_TIMEOUT_S, DEFAULT_TIMEOUT_S, problems),
        heartbeat_s=_seconds(environ, HEARTBEAT_S, DEFAULT_HEARTBEAT_S, problems),
        worker_timeout_s=job.timeout_s,
        restarts=RestartPolicy(_max_restarts(job, environ, problems)),
        is_last_word=environ.get(RESTARTED_BY) == BY_AGENT,
        backup=job.backup,
        places=_places(job),
        num_starts=_count(environ, GENERATION, problems),
    )
    if problems:
        raise ConfigurationError("\n  - ".join(["This agent cannot find the others:", *problems]))
    identity = Identity(
        index=index,
        incarnation=secrets.token_hex(8),
        place=_own_place(rules.places, index, environ),
        rendezvous=join(host, port),
        seed=job.seed,
    )
    return Settings(identity, rules, host, port, key_of(token), _expected(job), is_pod=POD in environ)


def _place(job: Job, machines: int | None, machine: int | None, problems: list[str]) -> tuple[int, int]:
    """How many agents there are, and which of them this one is."""
    if job.cluster is not None:
        if machines is not None or machine is not None:
            problems.append(
                f"--machines and --machine are for machines that know nothing of each other, but {job.cluster.source} "
                f"says that this is worker {job.cluster.rank} of {job.cluster.num_workers}. Leave them out"
            )
        return job.cluster.num_workers // job.num_workers, job.ranks.start // job.num_workers
    num_agents, index = machines or 1, machine or 0
    if num_agents < 1 or index not in range(num_agents):
        problems.append(f"--machine {index} of --machines {num_agents}: expected 0 to {num_agents - 1}")
    if (machines is None) != (machine is None):
        problems.append(
            "--machines says how many machines there are and --machine which one this is: type both"
        )
    return num_agents, index


def _run(job: Job, environ: Mapping[str, str], num_agents: int, problems: list[str]) -> tuple[str, str]:
    """The run's id and its token. Each is made from the other where only one is given."""
    run_id = (job.cluster.run_id if job.cluster is not None else "") or environ.get(RUN_ID, "")
    token = environ.get(TOKEN, "")
    if num_agents == 1:
        run_id = run_id or secrets.token_hex(8)
    if not run_id and not token:
        problems.append(
            f"neither {TOKEN} nor {RUN_ID} is set, so anybody could join: type the same secret on all machines, "
            f"for example export {TOKEN}={secrets.token_hex(16)}"
        )
    return run_id or sha256(b"run id: " + token.encode()).hexdigest()[:16], token or run_id


def _rendezvous(job: Job, given: str, run_id: str, num_agents: int, problems: list[str]) -> tuple[str, int]:
    if given:
        if not is_address(given) or not port_of(given):
            problems.append(f"the rendezvous is {given!r}: {EXPECTED}")
            return "", 0
        return host_of(given), port_of(given)
    if num_agents == 1:
        return "127.0.0.1", 0
    if job.cluster is None:
        problems.append(
            "nobody says where the machines meet: type on all of them, for example, --rendezvous "
            f"{socket.gethostname()}:29400 with the name of machine 0"
        )
        return "", 0
    return host_of(job.cluster.coordinator), agreed_port(run_id) + _PORT_AFTER_WORKERS


def _max_restarts(job: Job, environ: Mapping[str, str], problems: list[str]) -> int:
    restarted_by = environ.get(RESTARTED_BY, BY_AGENT)
    if restarted_by not in (BY_AGENT, BY_JOBSET):
        problems.append(f"{RESTARTED_BY} is {restarted_by!r}: expected {BY_AGENT} or {BY_JOBSET}")
    return 0 if restarted_by == BY_JOBSET else job.max_restarts


def _expected(job: Job) -> tuple[str, ...]:
    return (UNKNOWN,) * job.num_workers if job.cluster is None else _own(job, job.cluster.workers)


def _own(job: Job, workers: tuple[str, ...]) -> tuple[str, ...]:
    return workers[job.ranks.start : job.ranks.stop]


def _places(job: Job) -> tuple[str, ...]:
    """The host of every agent, or nothing where not all are known."""
    if job.cluster is None:
        return ()
    hosts = tuple(host_of(address) for address in job.cluster.workers[:: job.num_workers])
    return () if UNKNOWN in hosts else hosts


def _own_place(places: tuple[str, ...], index: int, environ: Mapping[str, str]) -> str:
    host = places[index] if places else socket.gethostname()
    node = environ.get(NODE, "")
    return f"{host} on node {node}" if node else host


def _seconds(environ: Mapping[str, str], name: str, default: float, problems: list[str]) -> float:
    try:
        return duration_s(environ, name, default)
    except ConfigurationError as error:
        problems.append(str(error))
        return default


def _count(environ: Mapping[str, str], name: str, problems: list[str]) -> int:
    text = environ.get(name, "") or "0"
    if not text.isascii() or not text.isdecimal():
        problems.append(f"{name} is {text!r}: expected a whole number, 0 or more")
        return 0
    return int(text)
