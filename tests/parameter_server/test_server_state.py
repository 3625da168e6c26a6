import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parameter_server.state_driver import PLACEMENT, StateDriver
from trireme.parameter_server import RowGradient, VariableSpec, place
from trireme.parameter_server.messages import (
    Alive,
    Applied,
    Bye,
    Create,
    Done,
    Gather,
    Heartbeat,
    Hello,
    Idle,
    NextRange,
    Pull,
    Push,
    RangeGranted,
    Ready,
    Refused,
    TakeSnapshot,
    Welcome,
)
from trireme.parameter_server.rules import TOLD_BY_WORKERS, Tick
from trireme.parameter_server.server_state import ServerState


def test_a_push_is_applied_at_once_without_a_bound():
    driver = StateDriver(max_staleness=None).started()
    for step in range(3):
        number = driver.push(0, step)
        assert driver.answers["s0", number] == Applied(step, version=step + 1, staleness=0)
        assert driver.may_go_on(0, driver.pull(0))
    assert driver.weights.tolist() == [-3, -3]


def test_staleness_is_the_number_of_updates_missed():
    driver = StateDriver(max_staleness=None).started()
    driver.push(0, 0)
    driver.push(0, 1)
    number = driver.push(1, 0, version=0)
    assert driver.answers["s1", number].staleness == 2
    assert driver.state.statistics.staleness_max == 2


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_a_worker_may_be_so_many_steps_ahead(bound):
    driver = StateDriver(max_staleness=bound).started()
    for step in range(bound):
        driver.push(0, step)
        assert driver.may_go_on(0, driver.pull(0)), step
    driver.push(0, bound)
    number = driver.pull(0)
    assert not driver.may_go_on(0, number)
    assert driver.ask(0, Heartbeat()) == Alive("boot", (number,), waiting_for=(1,))
    driver.push(1, 0)
    assert driver.may_go_on(0, number)


def test_lock_step_applies_the_mean_when_all_have_pushed():
    driver = StateDriver(num_workers=3, max_staleness=0).started()
    first = driver.push(0, 0, [3, 0])
    pull = driver.pull(0)
    driver.push(2, 0, [0, 6])
    assert not driver.applied
    assert driver.ask(0, Heartbeat()).waiting_for == (1,)
    driver.push(1, 0, [3, 3])
    assert len(driver.applied) == 1
    assert driver.weights.tolist() == [-2, -3]
    assert driver.may_go_on(0, pull)
    assert driver.answers["s0", first] == Applied(0, version=1, staleness=0)


@pytest.mark.parametrize(
    ("reduction", "weights", "expected"),
    [
        ("mean", [3, 1], [-4, 0]),  # (3·4 + 1·4) / 4
        ("mean", [2, 0], [-4, 0]),
        ("sum", [1, 1], [-8, 0]),
        ("mean", [0, 0], [0, 0]),  # nobody had rows: no update, yet the step is over
    ],
)
def test_lock_step_weighs(reduction, weights, expected):
    driver = StateDriver(max_staleness=0, reduction=reduction).started()
    for worker, weight in enumerate(weights):
        driver.push(worker, 0, [4, 0], weight=float(weight))
    assert driver.weights.tolist() == expected
    assert driver.may_go_on(0, driver.pull(0))
    assert driver.state.steps.version == len(driver.applied) == int(sum(weights) > 0)


def test_lock_step_waits_for_workers_that_have_not_come_yet():
    driver = StateDriver(num_workers=2, max_staleness=0)
    driver.say(0, Ready(driver.hello(0).step))
    driver.create()
    driver.push(0, 0)
    assert not driver.applied
    assert driver.ask(0, Heartbeat()).waiting_for == (1,)
    driver.say(1, Ready(driver.hello(1).step))
    driver.push(1, 0)
    assert len(driver.applied) == 1


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.randoms(use_true_random=False), st.booleans())
def test_lock_step_gives_the_same_bits_in_any_order(num_workers, num_steps, luck, repeats):
    """Against the obvious loop: the mean in rank order, step after step."""
    gradients = np.random.default_rng(num_steps).normal(size=(num_steps, num_workers, 2)).astype(np.float32)
    expected = np.zeros(2)
    for step in range(num_steps):
        mean = sum((g * np.float32(1 / num_workers) for g in gradients[step]), np.zeros(2, np.float32))
        expected = expected - mean.astype(float)
    driver = StateDriver(num_workers, max_staleness=0).started()
    next_step = [0] * num_workers
    pulls = [driver.pull(worker) for worker in range(num_workers)]
    while min(next_step) < num_steps or not all(
        driver.may_go_on(worker, pull) for worker, pull in enumerate(pulls)
    ):
        able = [w for w in range(num_workers) if driver.may_go_on(w, pulls[w]) and next_step[w] < num_steps]
        worker = luck.choice(able)
        driver.push(worker, next_step[worker], gradients[next_step[worker], worker])
        if repeats and luck.random() < 0.5:
            late = luck.randrange(next_step[worker] + 1)
            driver.push(worker, late, gradients[late, worker])
        next_step[worker] += 1
        pulls[worker] = driver.pull(worker)
        assert max(next_step) - min(next_step) <= 1
    assert driver.weights.tolist() == expected.tolist()
    assert len(driver.applied) == num_steps


@pytest.mark.parametrize("bound", [None, 0, 2])
def test_a_repeated_push_changes_nothing_and_is_answered(bound):
    driver = StateDriver(num_workers=1, max_staleness=bound).started()
    driver.push(0, 0)
    again = driver.push(0, 0)
    assert driver.weights.tolist() == [-1, -1]
    assert driver.answers["s0", again].step == 0
    assert driver.state.statistics.duplicates == 1


def test_a_push_that_is_repeated_while_it_waits_is_answered_once_it_is_applied():
    driver = StateDriver(max_staleness=0).started()
    driver.push(0, 0, [2, 2])
    again = driver.push(0, 0, [2, 2])
    assert ("s0", again) not in driver.answers
    driver.push(1, 0, [4, 4])
    assert driver.answers["s0", again] == Applied(0, 1, 0)
    assert driver.weights.tolist() == [-3, -3]


def test_a_request_after_a_gap_is_refused_until_the_gap_is_filled():
    driver = StateDriver(max_staleness=None).started()
    push = Push(0, 0, 1.0, 0, {"w": np.ones(2, np.float32)})
    lost = driver.numbers["s0"] + 1
    answer = driver.ask(0, Ready(5), number=lost + 1)
    assert answer == Refused("out_of_turn", f"request {lost + 1} of worker 0 came instead of request {lost}")
    assert driver.ask(0, push, number=lost) == Applied(0, 1, 0)
    assert driver.ask(0, Ready(5), number=lost + 1) == Done()
    assert len(driver.applied) == 1


def test_an_old_word_that_is_repeated_does_not_undo_a_newer_one():
    driver = StateDriver(max_staleness=1).started()
    ready = driver.say(1, Ready(0))
    driver.say(1, Idle(0))
    assert driver.ask(1, Ready(0), number=ready) == Done()
    driver.push(0, 0)
    driver.push(0, 1)
    assert driver.may_go_on(0, driver.pull(0)), "worker 1 is still idle"


def silence(driver, worker, seconds=40):
    """All but `worker` are heard while `seconds` pass."""
    for _ in range(seconds):
        driver.clock = getattr(driver, "clock", 0) + 1
        for rank, member in list(driver.state.steps.members.items()):
            if rank != worker:
                driver.say(rank, Heartbeat(), member.sender.session)
        driver.handle(Tick(driver.clock))


@pytest.mark.parametrize("bound", [0, 2])
def test_nobody_waits_for_a_lost_worker(bound):
    driver = StateDriver(max_staleness=bound).started()
    for step in range(bound + 1):
        driver.push(0, step)
    pull = driver.pull(0)
    assert not driver.may_go_on(0, pull)
    silence(driver, worker=1)
    assert driver.may_go_on(0, pull)
    assert "worker 1 was silent for 30 s" in driver.reports[0]
    assert driver.refusal(1, Pull()).startswith("hello_first")


def test_a_complete_push_of_a_lost_worker_counts():
    driver = StateDriver(num_workers=3, max_staleness=0).started()
    driver.push(2, 0, [3, 3])
    silence(driver, worker=2)
    driver.push(0, 0, [3, 3])
    driver.push(1, 0, [3, 3])
    assert driver.weights.tolist() == [-3, -3]


def test_a_worker_that_comes_back_does_not_count_twice():
    driver = StateDriver(max_staleness=0).started()
    driver.push(1, 0, [2, 2])
    silence(driver, worker=1)
    welcome = driver.hello(1, step=0)  # its push was never answered, so it begins with it again
    assert welcome.lacks_from == 1
    again = driver.push(1, 0, [2, 2])
    driver.push(0, 0, [4, 4])
    assert driver.weights.tolist() == [-3, -3]
    assert driver.answers["s1", again] == Applied(0, 1, 0)


def test_a_worker_that_was_away_goes_on_where_the_others_are():
    driver = StateDriver(max_staleness=0).started()
    silence(driver, worker=1)
    for step in range(5):
        driver.push(0, step)
    assert driver.hello(1, step=0).step == 5
    driver.say(1, Ready(5))
    driver.push(0, 5, [2, 2])
    assert len(driver.applied) == 5
    driver.push(1, 5, [4, 4])
    assert driver.applied[-1]["w"].tolist() == [3, 3]


def test_a_killed_worker_that_is_started_again_joins_at_the_current_step():
    driver = StateDriver(max_staleness=0).started()
    for step in range(3):
        driver.push(0, step)
        driver.push(1, step)
    driver.push(0, 3, [2, 2])
    welcome = driver.hello(1, session="t1")
    assert (welcome.step, welcome.is_initialised) == (3, True)
    assert "worker 1 was started again" in driver.reports[0]
    assert len(driver.applied) == 3, "nothing is applied before the newcomer has said where it begins"
    driver.say(1, Ready(3), session="t1")
    driver.push(1, 3, [4, 4], session="t1")
    assert driver.applied[-1]["w"].tolist() == [3, 3]


def test_a_newcomer_that_begins_later_is_not_waited_for_before():
    """Another server may be a step ahead: the newcomer begins there."""
    driver = StateDriver(max_staleness=0).started()
    driver.push(0, 0)
    driver.hello(1, session="t1")
    assert not driver.applied
    driver.say(1, Ready(1), session="t1")
    assert len(driver.applied) == 1
    driver.push(0, 1)
    assert len(driver.applied) == 1


def test_what_an_earlier_life_left_in_an_open_step_is_replaced():
    driver = StateDriver(max_staleness=0).started()
    driver.push(1, 0, [100, 100])
    driver.say(1, Ready(driver.hello(1, session="t1").step), session="t1")
    driver.push(1, 0, [4, 4], session="t1")
    driver.push(0, 0, [2, 2])
    assert driver.applied[0]["w"].tolist() == [3, 3]


def test_what_an_earlier_life_left_is_not_taken_for_a_request_of_this_one():
    driver = StateDriver(max_staleness=0).started()
    driver.push(1, 0)
    driver.hello(1, session="t1")
    assert driver.ask(1, Heartbeat(), session="t1").pending == ()


def test_an_earlier_life_has_no_say():
    driver = StateDriver(max_staleness=None).started()
    driver.hello(1, session="t1")
    assert driver.refusal(1, Push(0, 0, 1.0, 0)).startswith("superseded: another process has become worker 1")
    assert driver.refusal(1, Hello("run", PLACEMENT.fingerprint, 1, step=4)).startswith("superseded")
    assert not driver.applied


def test_a_restored_server_believes_the_latest_life_of_a_worker():
    before = StateDriver(num_workers=1).started()
    after = StateDriver(num_workers=1)
    after.state.restore(before.state.record(), list(before.state.slices.values()))
    assert after.hello(0, step=4, session="t0").num_applied == 0
    assert after.refusal(0, Hello("run", PLACEMENT.fingerprint, 1, step=9)).startswith("superseded")
    after.push(0, 4, session="t0")
    assert len(after.applied) == 1


def test_a_server_that_was_stopped_itself_loses_nobody():
    driver = StateDriver().started()
    driver.handle(Tick(0.0))
    driver.handle(Tick(1000.0))
    assert not driver.reports
    silence(driver, worker=1, seconds=31)  # this clock begins at 1: time does not run backwards for long
    assert sorted(driver.state.steps.members) == [0, 1]


def test_pulls_wait_for_the_variables():
    driver = StateDriver()
    driver.hello(1)
    number = driver.pull(1)
    assert driver.ask(1, Heartbeat()) == Alive("boot", (number,), waiting_for=(0,))
    driver.hello(0)
    driver.create()
    assert driver.may_go_on(1, number)


def test_a_chief_that_comes_again_does_not_reset_the_variables():
    driver = StateDriver().started()
    driver.push(0, 0)
    driver.hello(0, session="t0")
    again = Create(
        PLACEMENT.by_server[0], True, {}, {n: np.ones(s, "f") for n, s in [("w", 2), ("t", (10, 1))]}
    )
    assert driver.ask(0, again, session="t0") == Done(is_used=False)


def test_servers_end_when_all_workers_are_done_or_gone():
    driver = StateDriver(num_workers=3).started()
    driver.ask(0, Bye())
    driver.ask(2, Bye())
    assert not driver.is_over
    assert driver.ask(2, Bye()) == Done()  # the first answer may have got lost
    silence(driver, worker=1)
    assert driver.is_over


def test_servers_do_not_end_because_all_workers_are_gone():
    driver = StateDriver(num_workers=1).started()
    silence(driver, worker=0)
    assert driver.reports
    assert not driver.is_over


ROWS = np.array([0, 10])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (Hello("other", PLACEMENT.fingerprint, 1), "this server belongs to run 'run', the worker to run 'other'"),
        (Hello("run", "elsewhere", 1), "places other variables on the servers"),
        (Push(0, 0, 1.0, 0, {"x": np.zeros(2, "f")}), "a gradient for 'x', which is not on this server"),
        (Push(0, 0, 1.0, 0, {"w": np.zeros(3, "f")}), "'w' is an array (2,) of float32, but (3,) of float32 came"),
        (Push(0, 0, 1.0, 0, {"w": np.zeros(2)}), "but (2,) of float64 came"),
        (Push(0, 0, 1.0, 0, {"t": RowGradient(ROWS, np.zeros((2, 1), "f"))}), "'t' has 10 rows, but rows 0 to 10"),
        (Push(0, 0, 1.0, 0, {"t": RowGradient(ROWS, np.zeros((2, 3), "f"))}), "row gradient of shape (2, 3)"),
        (Push(0, 0, 1.0, 0, {"t": RowGradient(ROWS, np.zeros((2, 1)))}), "row gradient of float64"),
        (Pull(("x",)), "['x'] are not on this server"),
        (Pull((), {"t": np.array([-1])}), "'t' has 10 rows, but rows -1 to -1"),
        (Pull((), {"t": np.zeros(2)}), "must be a list of integers"),
        (Create((place([VariableSpec("w", (3,))], 1).by_server[0][0],), True), "slice 'w' exists as"),
        (Create((place([VariableSpec("n", (3,))], 1).by_server[0][0],), True), "either a value or an initializer"),
        (Create((place([VariableSpec("n", (3,), "float32")], 1).by_server[0][0],), True, {},
                {"n": np.zeros(2, "f")}), "'n' is an array (3,)"),
        (Create((), True, {}, {"n": np.zeros(2, "f")}), "values for ['n']"),
    ],
)  # fmt: skip
def test_requests_that_make_no_sense_are_refused_and_change_nothing(body, text):
    driver = StateDriver().started()
    assert text in driver.refusal(0, body)
    driver.push(0, 0)
    assert driver.may_go_on(0, driver.pull(0))
    assert len(driver.applied) == 1


def test_a_worker_without_a_rank_is_refused():
    assert StateDriver(num_workers=2).refusal(2, Hello("run", "x", 1)) == "invalid: worker 2 of 2"


def test_a_push_before_the_variables_exist_is_refused():
    driver = StateDriver()
    driver.hello(0)
    assert "before the variables exist" in driver.refusal(0, Push(0, 0, 1.0, 0))


def test_a_restored_state_knows_what_it_lacks_and_waits_for_its_workers():
    before = StateDriver(max_staleness=0).started()
    for step in range(4):
        before.push(0, step)
        before.push(1, step)
    before.push(0, 4)  # not applied, so not in the snapshot
    record, slices = before.state.record(), list(before.state.slices.values())

    after = StateDriver(max_staleness=0)
    after.state = ServerState(after.rules, boot="other")
    after.state.restore(record, slices)
    assert after.refusal(0, Heartbeat()).startswith("hello_first")
    welcome = after.hello(0, step=6)  # had got on to step 6 by the time the server died
    assert (welcome.boot, welcome.lacks_from, welcome.is_initialised, welcome.version) == (
        "other",
        4,
        True,
        4,
    )
    after.push(0, 6)
    assert not after.applied, "worker 1 is expected although it has not said hello again"
    assert after.hello(1, step=6).lacks_from == 4
    after.push(1, 6)
    assert len(after.applied) == 1


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 3)), max_size=60))
def test_no_order_of_events_breaks_the_state(events):
    """Any worker may say anything at any time, with any step, as any of its lives."""
    driver = StateDriver(num_workers=3, max_staleness=0)
    bodies = [
        lambda step: Hello("run", PLACEMENT.fingerprint, 1, (), step if step % 2 else None),
        Ready,
        lambda step: Push(step, 0, 1.0, 0, {"w": np.ones(2, np.float32)}),
        lambda step: Pull(("w",)),
        lambda step: Create(PLACEMENT.by_server[0], True, {},
                            {"w": np.zeros(2, "f"), "t": np.zeros((10, 1), "f")}),
        lambda step: Heartbeat() if step else Bye(),
    ]  # fmt: skip
    for now_s, (worker, what, step) in zip(itertools.count(0, 13), events, strict=False):
        driver.say(worker, bodies[what](step), session=f"life{step // 3}")
        driver.handle(Tick(now_s))
        pending = driver.state.steps._pending
        assert all(driver.state.steps.next_update() is None for _ in pending)
        driver.ask(worker, TakeSnapshot(), session=f"life{step // 3}")


def test_the_first_greeting_decides_about_staleness_where_the_rules_leave_it_open():
    driver = StateDriver(max_staleness=TOLD_BY_WORKERS)
    assert isinstance(driver.ask(0, Hello("run", PLACEMENT.fingerprint, 1, max_staleness=0)), Welcome)
    other = Hello("run", PLACEMENT.fingerprint, 1, max_staleness=None)
    assert driver.refusal(1, other) == "invalid: max_staleness is 0 on other workers, None on this one"
    driver.say(0, Ready(0))
    driver.create()
    driver.push(0, 0)
    assert not driver.applied, "in lock step the update waits for worker 1"
    restored = ServerState(driver.rules, boot="later")
    restored.restore(driver.state.record(), list(driver.state.slices.values()))
    assert restored.rules.max_staleness == 0


def test_an_epoch_waits_for_whoever_may_begin_it():
    driver = StateDriver(max_staleness=0).started()
    follows = NextRange(5, 8, 2, is_idle=False, may_open=False, what="train")
    assert driver.ask(1, follows) is None
    assert driver.state.waited_for_by(1) == {0}
    assert isinstance(driver.ask(0, NextRange(5, 8, 2, False, True, "train")), RangeGranted)
    # The same moment gives rows to the other one, whose part of the first update is waited for.
    assert isinstance(driver.answers["s1", driver.numbers["s1"]], RangeGranted)
    driver.push(0, 0, epoch=5)
    assert not driver.applied
    driver.push(1, 0, epoch=5)
    assert len(driver.applied) == 1


def test_rows_for_two_purposes_are_not_mixed():
    driver = StateDriver().started()
    driver.say(0, NextRange(5, 8, 2, is_idle=False, what="train"))
    text = "invalid: worker 1 asks for rows to evaluate, while those of the others are to train"
    assert driver.refusal(1, NextRange(5, 8, 2, is_idle=False, what="evaluate")) == text


def test_the_chief_waits_until_all_others_have_come_to_an_epoch():
    driver = StateDriver(3, is_chief=True).started()
    gathered = driver.say(0, Gather(4))
    driver.say(1, NextRange(4, 8, 2, False, may_open=False))
    driver.say(2, NextRange(3, 8, 2, False, may_open=False))
    assert ("s0", gathered) not in driver.answers
    assert driver.state.waited_for_by(0) == {2}
    # Whoever is lost is not waited for.
    driver.hello(2, session="s2 anew")
    driver.say(2, NextRange(4, 8, 2, False, may_open=False), "s2 anew")
    assert driver.answers["s0", gathered] == Done()
    assert "hands out no rows" in StateDriver(is_chief=False).started().refusal(0, Gather(1))
