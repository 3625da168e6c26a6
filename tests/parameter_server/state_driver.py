"""A server's state and the workers that talk to it, without sockets: each line of a test is one event."""

from typing import Any

import numpy as np

from trireme.parameter_server import Rules, VariableSpec, place
from trireme.parameter_server.instructions import Apply, End, Reply, Report, SendValues
from trireme.parameter_server.messages import (
    Alive,
    Body,
    Create,
    Heartbeat,
    Hello,
    Pull,
    Push,
    Ready,
    Refused,
    Request,
    Sender,
    Welcome,
)
from trireme.parameter_server.rules import Tick
from trireme.parameter_server.server_state import ServerState

PLACEMENT = place([VariableSpec("w", (2,)), VariableSpec("t", (10, 1))], 1)


class StateDriver:
    """Keeps the weights like a server with plain SGD and a learning rate of 1, and all answers by request."""

    def __init__(self, num_workers: int = 2, **rules: Any) -> None:
        self.rules = Rules(num_workers, run_id="run", **rules)
        self.state = ServerState(self.rules, boot="boot")
        self.weights = np.zeros(2)
        self.applied: list[dict[str, Any]] = []
        self.answers: dict[tuple[str, int], Body] = {}
        self.values: dict[tuple[str, int], np.ndarray] = {}
        self.reports: list[str] = []
        self.is_over = False
        self.numbers: dict[str, int] = {}

    def handle(self, event: Request | Tick) -> list[tuple[str, int, Body]]:
        """Carries an event out; the answers by session and number."""
        replies = []
        for instruction in self.state.handle(event):
            match instruction:
                case Apply(gradients):
                    self.applied.append(dict(gradients))
                    if "w" in gradients:
                        self.weights = self.weights - np.asarray(gradients["w"], float)
                case Reply(to, number, body):
                    replies.append((to.session, number, body))
                    if not isinstance(body, Alive | Welcome):
                        self.answers[to.session, number] = body
                case SendValues(to, number):
                    self.values[to.session, number] = self.weights
                case Report(text):
                    self.reports.append(text)
                case End():
                    self.is_over = True
        return replies

    def request(self, worker: int, body: Body, session: str | None, number: int | None = None) -> Request:
        session = session or f"s{worker}"
        last = self.numbers.get(session, 0)
        if number is None:
            number = last if isinstance(body, Hello | Heartbeat) else last + 1
        self.numbers[session] = max(last, number)
        return Request(Sender(worker, session), number, body)

    def say(self, worker: int, body: Body, session: str | None = None, number: int | None = None) -> int:
        """Sends a request; its number. The session of a worker is called s0, s1, ... unless told otherwise."""
        request = self.request(worker, body, session, number)
        self.handle(request)
        return request.number

    def ask(
        self, worker: int, body: Body, session: str | None = None, number: int | None = None
    ) -> Body | None:
        """The answer to a request, None if it is withheld."""
        request = self.request(worker, body, session, number)
        replies = self.handle(request)
        mine = [b for s, n, b in replies if (s, n) == (request.sender.session, request.number)]
        return mine[-1] if mine else None

    def hello(self, worker: int, step: int | None = None, session: str | None = None) -> Welcome:
        first_number = self.numbers.get(session or f"s{worker}", 0) + 1
        answer = self.ask(worker, Hello("run", PLACEMENT.fingerprint, first_number, step=step), session)
        assert isinstance(answer, Welcome), answer
        return answer

    def create(self) -> None:
        values = {"w": np.zeros(2, np.float32), "t": np.zeros((10, 1), np.float32)}
        self.ask(0, Create(PLACEMENT.by_server[0], True, {}, values))

    def started(self) -> "StateDriver":
        """All workers have said hello, and the variables exist."""
        for worker in range(self.rules.num_workers):
            self.say(worker, Ready(self.hello(worker).step))
        self.create()
        return self

    def push(
        self, worker: int, step: int, gradient: Any = (1, 1), session: str | None = None, **fields: Any
    ) -> int:
        arrays = {} if gradient is None else {"w": np.array(gradient, np.float32)}
        content = {"epoch": 0, "weight": 1.0, "version": self.state.steps.version} | fields
        return self.say(worker, Push(step, arrays=arrays, **content), session)

    def pull(self, worker: int) -> int:
        return self.say(worker, Pull(("w",)))

    def may_go_on(self, worker: int, number: int) -> bool:
        return (f"s{worker}", number) in self.values

    def refusal(self, worker: int, body: Body, session: str | None = None) -> str:
        answer = self.ask(worker, body, session)
        assert isinstance(answer, Refused), answer
        return f"{answer.code}: {answer.text}"
