"""What the two state machines go by."""

from __future__ import annotations

from dataclasses import dataclass, field

from trireme.recovery.policy import RestartPolicy


@dataclass(frozen=True)
class Rules:
    """What all agents of a run are told alike. Durations are in seconds.

    Attributes:
        num_agents: how many have to be there for a generation to start.
        run_id: the run; agents of another are refused.
        timeout_s: how long agents wait for one that is missing.
        heartbeat_s: between two signs of life. An agent gives the rendezvous up after three of them without an
            answer, and ends its workers; the rendezvous waits for one more, so that they are gone by then.
        worker_timeout_s: how long a worker may keep the others waiting.
        restarts: how often the workers are started again.
        is_last_word: whether nothing else shall start the run again when the agents give up.
        backup: where the run is backed up, for people; None: nowhere.
        places: where each agent is expected, for people; empty where that is not known.
        num_starts: how often something else had started the run before.
    """

    num_agents: int
    run_id: str = ""
    timeout_s: float = 600.0
    heartbeat_s: float = 5.0
    worker_timeout_s: float = 600.0
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    is_last_word: bool = False
    backup: str | None = None
    places: tuple[str, ...] = ()
    num_starts: int = 0

    @property
    def rendezvous_silence_s(self) -> float:
        """How long an agent waits for a sign of life of the rendezvous."""
        return 3 * self.heartbeat_s

    @property
    def agent_silence_s(self) -> float:
        """How long the rendezvous waits for a sign of life of an agent."""
        return 4 * self.heartbeat_s


@dataclass(frozen=True)
class Identity:
    """Who an agent is.

    Attributes:
        index: which of the agents it is; that of worker 0 is 0.
        incarnation: a random name for this life of its process.
        place: where it is, for people.
        rendezvous: where the agents meet, for people.
        seed: what it would start the workers with.
    """

    index: int
    incarnation: str
    place: str = ""
    rendezvous: str = ""
    seed: int = 0
