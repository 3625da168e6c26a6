"""Whatever happens, in whatever order: what must hold at every moment, and that it ends well when the faults end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.simulation import Simulation
from trireme.agent.member import RUNNING

NUM_AGENTS = 3
indices = st.integers(0, NUM_AGENTS - 1)
ACTIONS = st.one_of(
    st.tuples(st.just("run"), st.sampled_from([0.1, 0.3, 1.0, 7.0, 16.0, 21.0])),
    st.tuples(st.sampled_from(["kill", "start", "finish", "signal", "plug"]), indices),
    # The chief's agent reaches its own rendezvous without a cable.
    st.tuples(st.just("pull"), st.integers(1, NUM_AGENTS - 1)),
    st.tuples(st.sampled_from(["fail 1", "fail 75", "fail 137", "fail 143"]), indices),
)


class Story:
    """A simulation, and what was seen in it."""

    def __init__(self, max_restarts, ending_s):
        self.simulation = Simulation(NUM_AGENTS, max_restarts=max_restarts, timeout_s=100.0)
        self.simulation.ending_s = dict(enumerate(ending_s))
        self.finished = {}
        self.newest = -1
        self.addresses = {}

    def do(self, action, argument):
        simulation = self.simulation
        if action == "run":
            for _ in range(round(argument / 0.1)):
                simulation.run(0.1)
                self.check()
        elif action == "start":
            self.start(argument)
        elif action == "plug":
            simulation.plug(argument)
        elif argument in simulation.agents:
            self.happen(action, argument)
        self.check()

    def start(self, index):
        """Who was killed or preempted comes again; who has ended by itself does when the whole run begins anew."""
        simulation = self.simulation
        if not simulation.agents:
            simulation.ended.clear()
            self.finished, self.newest, self.addresses = {}, -1, {}
        if index not in simulation.agents and simulation.exit_codes().get(index) in (None, 143):
            simulation.start(index)

    def happen(self, action, index):
        process = self.simulation.agents[index]
        if action == "kill":
            self.simulation.kill(index)
        elif action == "pull":
            self.simulation.pull(index)
        elif action == "signal" and process.exit_code is None:
            self.simulation.signal(index)
        elif action == "finish" and process.generation is not None and process.recalled_s is None:
            self.finished.setdefault(process.generation, set()).add(index)
            self.simulation.finish(index)
        elif action.startswith("fail") and process.generation is not None and process.recalled_s is None:
            code = int(action.split()[1])
            self.simulation.fail(index, code, step=self.simulation._last)

    def check(self):
        """No two generations at once, one view of each, and success only for all."""
        processes = list(self.simulation.agents.values())
        running = {process.generation for process in processes if process.generation is not None}
        assert len(running) <= 1, f"workers of generations {running} run at once"
        assert not running or max(running) >= self.newest
        self.newest = max([self.newest, *running])
        for process in [*processes, *self.simulation.ended]:
            for start in process.started:
                assert self.addresses.setdefault(start.generation, start.workers) == start.workers
            if process.exit_code == 0:
                assert any(len(finished) == NUM_AGENTS for finished in self.finished.values())

    def heal(self):
        """The faults end; who is gone comes again, as often as it takes, and all workers end well."""
        for index in range(NUM_AGENTS):
            self.do("plug", index)
        for _ in range(60):
            for index in range(NUM_AGENTS):
                self.do("start", index)
            self.do("run", 7.0)
            agents = self.simulation.agents
            done = self.finished.get(self.newest, set())
            if len(agents) == NUM_AGENTS and all(
                process.member.workers == RUNNING or index in done for index, process in agents.items()
            ):
                for index in range(NUM_AGENTS):
                    self.do("finish", index)
                self.do("run", 1.0)
                return set(self.simulation.exit_codes().values())
        return {process.member.workers for process in self.simulation.agents.values()}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(ACTIONS, max_size=25),
    st.sampled_from([0, 1, 1000]),
    st.tuples(*[st.sampled_from([0.0, 2.5])] * NUM_AGENTS),
)
def test_workers_of_two_generations_never_meet_and_the_run_goes_on_when_the_faults_end(
    actions, max_restarts, ending_s
):
    story = Story(max_restarts, ending_s)
    for action, argument in actions:
        story.do(action, argument)
    assert story.heal() == {0}
