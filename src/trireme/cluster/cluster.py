"""The cluster: who the processes of a run are, and which of them this one is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trireme.cluster.addresses import EXPECTED, UNKNOWN, duplicates, is_address, same_machine
from trireme.errors import ConfigurationError

WORKERS = "TRIREME_WORKERS"
SERVERS = "TRIREME_SERVERS"
EVALUATORS = "TRIREME_EVALUATORS"
ROLE = "TRIREME_ROLE"
RANK = "TRIREME_RANK"
REPLICAS_PER_WORKER = "TRIREME_REPLICAS_PER_WORKER"
RUN_ID = "TRIREME_RUN_ID"
LOCAL_RANK = "TRIREME_LOCAL_RANK"
NUM_LOCAL_WORKERS = "TRIREME_NUM_LOCAL_WORKERS"
VARIABLES = (
    WORKERS,
    SERVERS,
    EVALUATORS,
    ROLE,
    RANK,
    REPLICAS_PER_WORKER,
    RUN_ID,
    LOCAL_RANK,
    NUM_LOCAL_WORKERS,
)

ROLES = ("worker", "server", "evaluator")


@dataclass(frozen=True, repr=False)
class Cluster:
    """Every process of a run in rank order, and this process' place among them.

    Not every environment tells every address: torchrun, MPI and JAX's own variables tell only where
    worker 0 is. The others' addresses are then `"?"`. What is always known: the number of workers,
    this process' rank, the address of worker 0 (`coordinator`) when there are several workers, and the
    addresses of all servers.

    Args:
        workers: `"host:port"` of each worker in rank order, or `"?"`. The port is where that worker's
            backend runtime listens; 0 means that none is needed. Worker 0 is the chief.
        servers: `"host:port"` of each parameter server.
        evaluators: `"host:port"` or `"?"` of each evaluator.
        role: what this process is: `"worker"`, `"server"` or `"evaluator"`.
        rank: this process' index among those of its role.
        replicas_per_worker: how many devices one worker drives.
        run_id: a name that all processes of one run share and no other run has; no white space.
        local: this worker's rank among the workers of its machine, and their number, where the
            environment tells them. Otherwise they are counted from the hosts in `workers`.
        source: which detector found this cluster. It takes no part in comparisons.

    Raises:
        ConfigurationError: the values contradict each other; the message lists everything wrong.
    """

    workers: tuple[str, ...] = ("127.0.0.1:0",)
    servers: tuple[str, ...] = ()
    evaluators: tuple[str, ...] = ()
    role: str = "worker"
    rank: int = 0
    replicas_per_worker: int = 1
    run_id: str = ""
    local: tuple[int, int] | None = None
    source: str = field(default="default", compare=False)

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise ConfigurationError(
                "\n  - ".join([f"The cluster described by {self.source} is inconsistent:", *problems])
            )

    @property
    def num_workers(self) -> int:
        return len(self.workers)

    @property
    def num_replicas(self) -> int:
        """The number of copies of the model in the whole run."""
        return self.num_workers * self.replicas_per_worker

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0, which saves, logs and prints for all."""
        return self.role == "worker" and self.rank == 0

    @property
    def coordinator(self) -> str:
        """`"host:port"` of worker 0, where the others meet."""
        return self.workers[0]

    @property
    def local_rank(self) -> int:
        """This process' index among the processes of its role on its machine."""
        if self.local is not None:
            return self.local[0]
        peers = self._addresses_of_role()
        return sum(same_machine(address, peers[self.rank]) for address in peers[: self.rank])

    @property
    def num_local_workers(self) -> int:
        """The number of workers on this machine. A worker whose host is unknown counts as alone."""
        if self.local is not None:
            return self.local[1]
        mine = self._addresses_of_role()[self.rank]
        count = sum(same_machine(address, mine) for address in self.workers)
        return max(count, 1) if self.role == "worker" else count

    @property
    def is_single_machine(self) -> bool:
        """Whether all workers are known to run on one machine."""
        if self.local is not None or self.num_workers == 1:
            return self.local is None or self.local[1] == self.num_workers
        return all(same_machine(address, self.workers[0]) for address in self.workers)

    def at(self, rank: int, role: str = "worker") -> "Cluster":
        """This cluster as seen by another of its processes."""
        return replace(self, rank=rank, role=role, local=self.local if self._is(role, rank) else None)

    def describe(self) -> str:
        """One line for a person: who this process is among whom, and who says so."""
        count = len(self._addresses_of_role())
        words = [f"{self.role} {self.rank} of {count}"]
        if self.is_chief and count > 1:
            words[0] += " (the chief)"
        if self.replicas_per_worker > 1:
            words.append(f"{self.num_replicas} replicas ({self.replicas_per_worker} per worker)")
        if self.role != "worker":
            words.append(_counted(self.num_workers, "worker"))
        if self.role != "server" and self.servers:
            words.append(_counted(len(self.servers), "server"))
        if self.num_workers > 1:
            words.append(
                "all on one machine" if self.is_single_machine else f"worker 0 at {self.coordinator}"
            )
        if self.run_id:
            words.append(f"run {self.run_id}")
        return ", ".join([*words, "by default" if self.source == "default" else f"from {self.source}"])

    def __repr__(self) -> str:
        parts = [
            f"{self.role} {self.rank} of {len(self._addresses_of_role())}",
            f"workers={_shortened(self.workers)}",
            f"servers={_shortened(self.servers)}" if self.servers else "",
            f"evaluators={_shortened(self.evaluators)}" if self.evaluators else "",
            f"replicas_per_worker={self.replicas_per_worker}" if self.replicas_per_worker > 1 else "",
            f"local={self.local[0]} of {self.local[1]}" if self.local else "",
            f"run_id={self.run_id}" if self.run_id else "",
            f"source={self.source}",
        ]
        return f"Cluster({', '.join(part for part in parts if part)})"

    def to_environ(self) -> dict[str, str]:
        """The variables from which `from_environ` makes an equal cluster in another process."""
        environ = {
            WORKERS: ",".join(self.workers),
            SERVERS: ",".join(self.servers),
            EVALUATORS: ",".join(self.evaluators),
            ROLE: self.role,
            RANK: str(self.rank),
            REPLICAS_PER_WORKER: str(self.replicas_per_worker),
            RUN_ID: self.run_id,
        }
        if self.local is not None:
            environ[LOCAL_RANK], environ[NUM_LOCAL_WORKERS] = map(str, self.local)
        return environ

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Cluster":
        """The cluster that `to_environ` wrote.

        Raises:
            ConfigurationError: a variable is missing or malformed; the message lists all of them.
        """
        problems = [f"{name} is not set" for name in (WORKERS, RANK) if name not in environ]
        numbers = {
            name: _number(environ, name, problems)
            for name in (RANK, REPLICAS_PER_WORKER, LOCAL_RANK, NUM_LOCAL_WORKERS)
            if name in environ
        }
        if (LOCAL_RANK in environ) != (NUM_LOCAL_WORKERS in environ):
            problems.append(f"{LOCAL_RANK} and {NUM_LOCAL_WORKERS} belong together, but only one is set")
        if problems:
            raise ConfigurationError(
                "\n  - ".join(["Trireme's own variables describe no cluster:", *problems])
                + "\nThey are set by `trireme run`; by hand, set all of them: "
                f"{WORKERS}=host0:port,host1:port and {RANK}=0 on the first worker, 1 on the second."
            )
        role = environ.get(ROLE, "worker")
        return cls(
            workers=_addresses(environ, WORKERS),
            servers=_addresses(environ, SERVERS),
            evaluators=_addresses(environ, EVALUATORS),
            role="server" if role == "ps" else role,
            rank=numbers[RANK],
            replicas_per_worker=numbers.get(REPLICAS_PER_WORKER, 1),
            run_id=environ.get(RUN_ID, ""),
            local=(numbers[LOCAL_RANK], numbers[NUM_LOCAL_WORKERS]) if LOCAL_RANK in environ else None,
            source="trireme",
        )

    def _is(self, role: str, rank: int) -> bool:
        return (self.role, self.rank) == (role, rank)

    def _addresses_of_role(self) -> tuple[str, ...]:
        return {"worker": self.workers, "server": self.servers, "evaluator": self.evaluators}[self.role]


def _number(environ: Mapping[str, str], name: str, problems: list[str]) -> int:
    """The variable as an integer; what is wrong with it is added to `problems`."""
    try:
        return int(environ[name])
    except ValueError:
        problems.append(f"{name}={environ[name]!r} is not a whole number")
        return 0


def _addresses(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = environ.get(name, "").strip()
    return tuple(address.strip() for address in text.split(",")) if text else ()


def _problems(cluster: Cluster) -> list[str]:
    """Everything wrong with the values of a cluster, each in words."""
    return [*_address_problems(cluster), *_place_problems(cluster), *_detail_problems(cluster)]


def _address_problems(cluster: Cluster) -> list[str]:
    problems = [] if cluster.workers else ["there is no worker: expected at least one"]
    for name in ("workers", "servers", "evaluators"):
        for index, address in enumerate(getattr(cluster, name)):
            if is_address(address) or (address == UNKNOWN and name != "servers"):
                continue
            problems.append(f"{name}[{index}] is {address!r}: {EXPECTED}")
    if len(cluster.workers) > 1 and cluster.workers[0] == UNKNOWN:
        problems.append("the address of worker 0 is unknown, but the other workers meet there")
    for address in duplicates([*cluster.workers, *cluster.servers, *cluster.evaluators]):
        problems.append(f"{address} appears more than once: each process needs an address of its own")
    return problems


def _place_problems(cluster: Cluster) -> list[str]:
    if cluster.role not in ROLES:
        return [f"role is {cluster.role!r}: expected one of {', '.join(ROLES)}"]
    count = len(cluster._addresses_of_role())
    if not _is_count(cluster.rank, minimum=0) or (cluster.rank >= count and count > 0):
        last = f"0 to {count - 1}" if count > 1 else "0"
        return [f"rank is {cluster.rank!r} among {_counted(count, cluster.role)}: expected {last}"]
    if count == 0 and cluster.role != "worker":
        return [f"this process is {cluster.role} {cluster.rank}, but the cluster has no {cluster.role}s"]
    return []


def _detail_problems(cluster: Cluster) -> list[str]:
    problems = []
    if not _is_count(cluster.replicas_per_worker, minimum=1):
        problems.append(f"replicas_per_worker is {cluster.replicas_per_worker!r}: expected 1 or more")
    if not isinstance(cluster.run_id, str) or not cluster.run_id.isprintable() or " " in cluster.run_id:
        problems.append(f"run_id is {cluster.run_id!r}: expected printable text without white space")
    if cluster.local is not None and not _is_local(cluster.local, len(cluster.workers)):
        problems.append(
            f"local is {cluster.local!r}: expected (local rank, number of local workers) with the rank "
            f"below that number and at most {_counted(len(cluster.workers), 'worker')}"
        )
    return problems


def _is_local(local: object, num_workers: int) -> bool:
    if not isinstance(local, tuple) or len(local) != 2:
        return False
    rank, count = local
    return _is_count(rank, minimum=0) and _is_count(count, minimum=1) and rank < count <= num_workers


def _is_count(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _shortened(addresses: tuple[str, ...], shown: int = 4) -> str:
    """All of a few addresses, else the first ones and the last: a log line must stay a line."""
    if len(addresses) <= shown:
        return ",".join(addresses)
    return ",".join([*addresses[: shown - 2], f"({len(addresses) - shown + 1} more)", addresses[-1]])
