"""What happens to a run when something happens to one of its agents: a row is a story, told in a simulation."""

import pytest

from tests.agent.simulation import Simulation
from trireme.agent.messages import Ended, Ending, WorkerState
from trireme.recovery.policy import FailedAttempt

RUNNING = "running"


def running(**rules):
    """Two agents whose workers run, in generation 0."""
    simulation = Simulation(**rules)
    simulation.run(1.0)
    assert set(simulation.generations()) == {0}
    return simulation


def test_a_generation_starts_when_all_agents_are_there_and_ends_when_all_workers_are_done():
    simulation = Simulation(3)
    late = simulation.kill(2)
    simulation.run(5.0)
    assert simulation.generations() == [None, None]
    assert "waiting for agent 1" in simulation.text_of(0) or "waiting for agent 2" in simulation.text_of(0)
    simulation.start(2)
    simulation.run(3.0)
    assert simulation.generations() == [0, 0, 0]
    starts = [simulation.agents[index].started[0] for index in range(3)]
    assert {start.workers for start in starts} == {("host0:1", "host1:1", "host2:1")}
    assert [start.first_rank for start in starts] == [0, 1, 2]
    assert len({start.seed for start in starts}) == 1
    assert late.started == []

    simulation.finish(0)
    simulation.finish(2)
    simulation.run(30.0)
    assert simulation.exit_codes() == {0: None, 1: None, 2: None}
    simulation.finish(1)
    simulation.run(1.0)
    assert simulation.exit_codes() == {0: 0, 1: 0, 2: 0}


@pytest.mark.parametrize("index", [0, 1])
def test_when_workers_fail_all_start_again_and_no_agent_leaves(index):
    simulation = running()
    simulation.fail(index, exit_code=137)
    simulation.run(5.0)
    assert simulation.generations() == [1, 1]
    assert simulation.ended == []
    assert f"worker {index} failed" in simulation.text_of(1 - index)
    assert simulation.text_of(index).count(f"worker {index} failed") == 1
    assert "restarts left: 2" in simulation.text_of(0)


@pytest.mark.parametrize("index", [0, 1])
def test_when_an_agent_is_lost_the_others_keep_themselves_and_wait_for_the_next_one(index):
    simulation = running()
    other = simulation.agents[1 - index]
    simulation.kill(index)
    simulation.run(20.0)
    assert simulation.generations() == [None]
    simulation.start(index)
    simulation.run(10.0)
    assert simulation.generations() == [1, 1]
    assert simulation.agents[1 - index] is other
    assert simulation.agents[index].started[0].seed == other.started[0].seed
    assert f"rank {index} disappeared" in simulation.text_of(1 - index)


def test_the_history_outlives_the_chiefs_agent():
    """Each loss is counted, although who counts is lost as well."""
    simulation = running(max_restarts=2)
    for generation in (1, 2):
        simulation.kill(0)
        simulation.start(0)
        simulation.run(20.0)
        assert simulation.generations() == [generation, generation]
    simulation.kill(0)
    simulation.start(0)
    simulation.run(20.0)
    assert simulation.exit_codes() == {0: 65, 1: 65}
    assert "all 2 restarts are used up" in simulation.text_of(1)


def test_a_failure_is_not_forgotten_when_the_chiefs_agent_is_lost_before_it_is_told():
    simulation = running()
    simulation.pull(1)
    simulation.fail(1, exit_code=3, exception="ValueError", step=7)
    simulation.kill(0)
    simulation.plug(1)
    simulation.start(0)
    simulation.run(20.0)
    assert simulation.generations() == [1, 1]
    # Who was lost comes first, as with workers of one machine that were killed.
    assert "rank 0 disappeared" in simulation.text_of(1)
    assert "worker 1 failed" in simulation.text_of(1)


@pytest.mark.parametrize(
    ("exit_code", "restarts", "last_word", "codes"),
    [
        (1, 0, False, {0: 75, 1: 1}),
        (64, 3, False, {0: 75, 1: 64}),
        (78, 3, False, {0: 75, 1: 78}),
        (130, 3, False, {0: 75, 1: 130}),
        # Somebody else would start the run again that the agents have given up.
        (1, 0, True, {0: 65, 1: 65}),
        (64, 3, True, {0: 75, 1: 64}),
        (78, 3, True, {0: 75, 1: 78}),
    ],
)
def test_a_failure_that_ends_the_run_ends_it_with_its_code_where_it_happened(
    exit_code, restarts, last_word, codes
):
    simulation = running(max_restarts=restarts, is_last_word=last_word)
    simulation.fail(1, exit_code)
    simulation.run(5.0)
    assert simulation.exit_codes() == codes


def test_an_exception_that_repeats_at_the_same_step_ends_the_run():
    simulation = running()
    for _ in range(2):
        simulation.fail(1, 1, "ValueError", step=3)
        simulation.run(5.0)
    assert simulation.exit_codes() == {0: 75, 1: 1}
    assert "as it did before" in simulation.text_of(0)


def test_when_the_budget_is_used_up_all_end_with_its_code():
    simulation = running(max_restarts=1)
    simulation.fail(1, 137)
    simulation.run(5.0)
    simulation.fail(0, 139)
    simulation.run(5.0)
    assert simulation.exit_codes() == {0: 65, 1: 65}


def test_the_cause_is_told_though_its_consequence_came_first():
    simulation = running()
    simulation.fail(0, 75)
    simulation.run(1.0)
    assert simulation.generations() == [None, 0]
    simulation.fail(1, 1, "ValueError", step=3)
    simulation.run(0.5)
    assert "rank 1 raised ValueError" in simulation.text_of(0)
    assert "rank 0 lost a peer" not in simulation.text_of(0)
    headline = simulation.text_of(0).index("worker 1 failed")
    assert headline < simulation.text_of(0).index("worker 0 failed")


def test_a_lost_peer_without_a_cause_ends_the_generation_nevertheless():
    simulation = running()
    simulation.fail(0, 75)
    simulation.run(10.0)
    assert simulation.generations() == [1, 1]
    assert "rank 0 lost a peer" in simulation.text_of(1)


def test_a_cable_pulled_for_two_seconds_disturbs_nobody():
    simulation = running()
    simulation.pull(1)
    simulation.run(2.0)
    simulation.plug(1)
    simulation.run(60.0)
    assert simulation.generations() == [0, 0]
    assert "lost" not in simulation.text_of(0) + simulation.text_of(1)


def test_a_cable_pulled_for_long_ends_the_workers_on_its_side_before_the_others_count_on_it():
    simulation = running()
    simulation.pull(1)
    simulation.run(17.0)
    assert simulation.generations() == [0, None]
    simulation.run(5.0)
    assert simulation.generations() == [None, None]
    assert "agent 1 (host1) was lost: it was silent for" in simulation.text_of(0)
    simulation.plug(1)
    simulation.run(10.0)
    assert simulation.generations() == [1, 1]


def test_a_cable_pulled_for_ever_ends_the_run_within_the_deadline_and_says_who_was_missing():
    simulation = running(timeout_s=60.0)
    simulation.pull(1)
    simulation.run(90.0)
    assert simulation.exit_codes() == {0: 75, 1: 75}
    assert "waited 60 s in vain for agent 1 (host1), which was lost: it was silent" in simulation.text_of(0)
    assert "waited 60 s in vain for the rendezvous at host0:1" in simulation.text_of(1)


def test_without_restarts_nobody_waits_for_a_lost_chief():
    simulation = running(max_restarts=0)
    simulation.kill(0)
    simulation.run(1.0)
    assert simulation.exit_codes()[1] == 75


def test_a_failure_of_its_own_is_the_exit_code_of_an_agent_that_cannot_ask_anybody():
    simulation = running()
    simulation.pull(1)
    simulation.fail(1, 3)
    simulation.run(90.0)
    assert simulation.exit_codes() == {0: 75, 1: 3}


@pytest.mark.parametrize("index", [0, 1])
def test_a_preempted_agent_leaves_with_its_code_and_costs_no_restart(index):
    simulation = running(max_restarts=1)
    simulation.signal(index)
    simulation.run(5.0)
    assert simulation.exit_codes()[index] == 143
    assert simulation.generations() == [None]
    assert f"agent {index} (host{index}) has left: it was told to end (SIGTERM)" in simulation.text_of(
        1 - index
    )
    simulation.start(index)
    simulation.run(10.0)
    assert simulation.generations() == [1, 1]
    assert "restarts left: 1" in simulation.text_of(1 - index)


def test_a_signal_before_anything_started_ends_the_agent_at_once():
    simulation = Simulation(2)
    simulation.kill(0)
    simulation.signal(1)
    simulation.run(0.5)
    assert simulation.exit_codes()[1] == 143


def test_an_agent_whose_workers_are_done_may_be_lost():
    simulation = running()
    simulation.finish(1)
    simulation.run(1.0)
    simulation.kill(1)
    simulation.run(1.0)
    simulation.start(1)
    simulation.run(1.0)
    assert simulation.generations() == [0, None]
    simulation.finish(0)
    simulation.run(1.0)
    assert simulation.exit_codes() == {0: 0, 1: 0}


def test_done_workers_start_again_when_others_fail():
    simulation = running()
    simulation.finish(1)
    simulation.run(1.0)
    simulation.fail(0, 137)
    simulation.run(5.0)
    assert simulation.generations() == [1, 1]


def test_of_two_processes_of_one_agent_the_first_keeps_the_seat_while_it_lives():
    simulation = running()
    first = simulation.take_away(1)
    second = simulation.start(1)
    simulation.run(10.0)
    assert (first.generation, second.generation) == (0, None)
    assert "agent 1 is there already, at host1" in "".join(second.told)


def test_a_process_whose_place_another_has_taken_never_gets_it_back():
    simulation = running()
    simulation.pull(1)
    simulation.run(25.0)
    stale = simulation.take_away(1)
    # Its way back is longer than the way of the one that replaces it.
    simulation.others.remove(stale)
    simulation.plug(1)
    simulation.start(1)
    simulation.run(10.0)
    assert simulation.generations() == [1, 1]
    simulation.others.append(stale)
    simulation.run(10.0)
    assert stale.exit_code == 75
    assert "another process has taken the place of agent 1" in "".join(stale.told)
    assert simulation.agents[1].generation == 1


def test_agents_of_another_run_are_refused_and_try_again():
    simulation = Simulation(2)
    simulation.kill(1)
    other = simulation.rules.__class__(2, run_id="other", timeout_s=20.0)
    stranger = simulation.start(1, other)
    simulation.run(25.0)
    assert simulation.generations() == [None]
    assert stranger.exit_code == 75
    assert "it serves the run 'run', and this is the run 'other'" in "".join(stranger.told)


def test_an_agent_of_another_number_of_agents_is_told_so_at_once():
    simulation = Simulation(2)
    simulation.kill(1)
    stranger = simulation.start(1, simulation.rules.__class__(3, run_id="run"))
    simulation.run(1.0)
    assert stranger.exit_code == 78
    assert "it expects 2 agents, and this one is agent 1 of 3" in "".join(stranger.told)


def test_a_worker_that_keeps_another_machine_waiting_is_named_and_the_run_starts_again():
    simulation = running(worker_timeout_s=40.0)
    began_s = simulation.now_s
    while simulation.generations() == [0, 0] and simulation.now_s - began_s < 100:
        age_s = simulation.now_s - began_s
        simulation.agents[0].states = (WorkerState(0, 12, "waiting", age_s),)
        simulation.agents[1].states = (WorkerState(1, 11, "running", age_s),)
        simulation.run(0.1)
    assert 30 < simulation.now_s - began_s < 40
    assert "stuck: worker 1 (step 11)" in simulation.text_of(0)
    simulation.run(5.0)
    assert simulation.generations() == [1, 1]


@pytest.mark.parametrize("index", [0, 1])
def test_a_lost_agent_costs_no_waiting_when_the_generation_got_further_than_those_before(index):
    simulation = running(max_restarts=10)
    for generation in range(4):
        simulation.agents[1 - index].states = (WorkerState(1 - index, 10 * generation, RUNNING, 0.0),)
        simulation.run(0.3)
        simulation.kill(index)
        simulation.start(index)
        simulation.run(
            4.0, until=lambda generation=generation: simulation.generations() == [generation + 1] * 2
        )
    assert simulation.generations() == [4, 4]
    assert simulation.text_of(1 - index).count("starting again now") == 4


def test_backoff_grows_while_nothing_is_gained():
    simulation = running(max_restarts=3)
    waited = []
    for generation in (1, 2, 3):
        simulation.fail(0, 137)
        began_s = simulation.now_s
        simulation.run(60.0, until=lambda generation=generation: simulation.generations() == [generation] * 2)
        waited.append(simulation.now_s - began_s)
    assert waited[0] < waited[1] < waited[2]


def test_jobset_counts_starts_that_agents_have_not_seen():
    simulation = Simulation(2, num_starts=4, max_restarts=0)
    simulation.run(1.0)
    assert simulation.generations() == [4, 4]


def test_what_is_said_about_an_earlier_generation_changes_nothing():
    simulation = running()
    simulation.fail(1, 137)
    simulation.run(5.0)
    assert simulation.generations() == [1, 1]
    late = simulation.agents[1]
    for ending in (None, Ending(FailedAttempt(1, 3), "worker 1 failed late\n")):
        simulation.cables[late.connection].to_server.append(Ended(0, ending))
    simulation.run(5.0)
    assert simulation.generations() == [1, 1]
    simulation.finish(0)
    simulation.run(1.0)
    assert simulation.exit_codes() == {0: None, 1: None}
    assert "failed late" not in simulation.text_of(0)


def test_nobody_starts_before_the_last_worker_of_the_generation_before_has_ended():
    simulation = running()
    simulation.ending_s[0] = 4.0
    simulation.fail(1, 137)
    simulation.run(4.0)
    assert simulation.generations() == [0, None]
    simulation.run(3.0)
    assert simulation.generations() == [1, 1]


@pytest.mark.parametrize("is_reachable", [True, False])
def test_workers_that_end_well_while_they_are_called_off_start_again_with_the_others(is_reachable):
    simulation = running()
    simulation.ending_s[1] = 30.0
    if is_reachable:
        simulation.fail(0, 137)
        simulation.run(1.0)
    else:
        simulation.pull(1)
        simulation.run(25.0)
    simulation.finish(1)
    simulation.plug(1)
    simulation.run(5.0)
    assert simulation.generations() == [1, 1]
