"""Real agents with real workers on loopback: how a run ends, and what it survives."""

import signal
import socket

import pytest

from tests.agent.agents import kill, wait_until_gone

WAITS = "wait_for(f'go-{generation}')\n"


def test_success_is_told_when_all_workers_of_all_agents_have_ended_well(agents, script):
    run = agents(script("wait_for(f'go-{rank}')\ntell(f'done-{rank}', os.environ['TRIREME_WORKERS'])"))
    run.start()
    run.wait_for_generation(0)
    run.let("go-1")
    addresses = run.wait_for_file("done-1").split(",")
    run.wait_for_words(1, "started here")
    assert len(set(addresses)) == 2 and all(address.startswith("127.0.0.1:") for address in addresses)
    # Its workers are done, and others may still fail.
    with pytest.raises(AssertionError, match="still running"):
        run.wait(1, within_s=1.0)
    run.let("go-0")
    assert run.wait() == [0, 0]


def test_agents_with_several_workers_each_count_them_in_the_order_of_the_agents(agents, script):
    code = """
    from trireme.cluster.resolve import resolve
    cluster = resolve(os.environ)
    tell(f"cluster-{rank}", f"{cluster.num_workers} {os.environ['TRIREME_SEED']} {cluster.run_id}")
    """
    run = agents(script(code), workers=2).start()
    assert run.wait() == [0, 0]
    assert len({run.wait_for_file(f"cluster-{rank}") for rank in range(4)}) == 1
    assert run.wait_for_file("cluster-0").startswith("4 ")


def test_workers_do_not_have_the_token(agents, script):
    run = agents(script("tell(f'token-{rank}', os.environ.get('TRIREME_TOKEN'))")).start()
    assert run.wait() == [0, 0]
    assert run.wait_for_file("token-0") == run.wait_for_file("token-1") == "None"


def test_a_killed_worker_is_started_again_together_with_the_others_and_all_agents_stay(agents, script):
    run = agents(script(WAITS)).start()
    workers = run.wait_for_generation(0)
    kill(workers[0])
    newer = run.wait_for_generation(1)
    wait_until_gone(workers)
    assert not set(workers) & set(newer)
    run.let("go-1")
    assert run.wait() == [0, 0]
    for index in range(2):
        assert "worker 0 of 2" in run.output(index) and "was killed by SIGKILL" in run.output(index)
        assert "restarts left: 2" in run.output(index)


def test_an_exception_is_told_by_every_agent_and_one_that_repeats_ends_the_run(agents, script):
    run = agents(
        script("board.post(rank, step=3)\nif rank == 1:\n    raise ValueError('bad row')\nwait_for('never')")
    ).start()
    assert run.wait() == [75, 1]
    for index in range(2):
        assert run.output(index).count("ValueError: bad row\n") >= 2
        assert "Traceback" in run.output(index)
        assert "as it did before: a restart does not help" in run.output(index)


def test_without_restarts_the_first_failure_ends_the_run(agents, script):
    run = agents(script("if rank == 0:\n    sys.exit(3)\nwait_for('never')"), max_restarts=0).start()
    assert run.wait() == [3, 75]
    assert "worker 0 of 2" in run.output(1)


SAVES = """
def save(*_):
    tell(f"saved-{generation}-{rank}")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
tell(f"ready-{generation}-{rank}")
wait_for(f"go-{generation}")
"""


def test_a_preempted_agent_passes_the_signal_on_and_ends_with_143_and_its_next_one_goes_on(agents, script):
    """The chief's: what it says as it leaves must reach the others before the rendezvous is gone with it."""
    run = agents(script(SAVES), max_restarts=1).start()
    for rank in range(2):
        run.wait_for_file(f"ready-0-{rank}")
    run.agents[0].send_signal(signal.SIGTERM)
    assert run.wait(0) == [143]
    run.wait_for_file("saved-0-0")
    run.start(0)
    run.wait_for_generation(1)
    run.let("go-1")
    assert run.wait() == [0, 0]
    assert "restarts left: 1" in run.output(1)


def test_a_preempted_run_ends_everywhere_with_143(agents, script):
    run = agents(script(SAVES)).start()
    for rank in range(2):
        run.wait_for_file(f"ready-0-{rank}")
    for index in range(2):
        run.agents[index].send_signal(signal.SIGTERM)
    assert run.wait() == [143, 143]
    run.wait_for_file("saved-0-0")
    run.wait_for_file("saved-0-1")


def test_a_worker_that_ends_well_on_sigterm_does_not_make_its_agent_look_done(agents, script):
    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\ntell(f'ready-{rank}')\nwait_for('never')"
    run = agents(script(code)).start()
    run.wait_for_file("ready-1")
    run.agents[1].send_signal(signal.SIGTERM)
    assert run.wait(1) == [143]


def test_an_agent_that_waits_for_others_ends_at_once_on_a_signal(agents, script):
    run = agents(script("pass")).start(1)
    run.wait_for_words(1, "not at the rendezvous")
    run.agents[1].send_signal(signal.SIGTERM)
    assert run.wait(1, within_s=3.0) == [143]


@pytest.mark.parametrize(
    ("index", "words"), [(0, "in vain for agent 1"), (1, "in vain for the rendezvous at")]
)
def test_who_is_waited_for_in_vain_is_named(agents, script, index, words):
    run = agents(script("pass"), environ={"TRIREME_RENDEZVOUS_TIMEOUT_S": "1"}).start(index)
    assert run.wait(index) == [75]
    assert words in run.output(index)


def test_strangers_and_noise_disturb_nobody(agents, script):
    run = agents(script(WAITS)).start()
    run.wait_for_generation(0)
    host, port = run.options["rendezvous"].split(":")
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 500):
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(noise)
    other = agents(run.script, rendezvous=run.options["rendezvous"], environ={
        "TRIREME_TOKEN": "a guess", "TRIREME_RENDEZVOUS_TIMEOUT_S": "1"
    })  # fmt: skip
    other.folder.joinpath("other").mkdir()
    other.folder = other.folder / "other"
    other.start(1)
    assert other.wait(1) == [75]
    assert "TRIREME_TOKEN" in other.output(1)
    run.let("go-0")
    assert run.wait() == [0, 0]


def test_a_second_process_of_an_agent_waits_for_its_seat_and_says_so(agents, script):
    run = agents(script(WAITS)).start()
    run.wait_for_generation(0)
    first = run.agents[1]
    run.start(1)
    run.wait_for_words(1, "agent 1 is there already")
    first.kill()
    run.wait_for_generation(1)
    run.let("go-1")
    assert run.wait() == [0, 0]
    # Both write to one folder, and what the lost one has written is still there.
    for rank in range(2):
        log = (run.folder / "logs" / f"worker-{rank}.log").read_text()
        assert log.count(f"trireme: Cluster(worker {rank} of 2") == 2


def test_a_taken_port_is_told(agents, script):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        run = agents(script("pass"), rendezvous=f"127.0.0.1:{other.getsockname()[1]}").start(0)
        [code] = run.wait(0)
    assert code != 0
    assert "cannot listen at port" in run.output(0)


STUCK = """
board.post(rank, step=7 - rank, state="running")
if generation == 0 and rank == 0:
    board.post(rank, state="waiting")
if generation == 0:
    wait_for("never")
"""


def test_a_worker_that_keeps_another_machine_waiting_is_named_with_its_stack(agents, script):
    run = agents(script(STUCK), environ={"TRIREME_TIMEOUT_S": "4"}).start()
    assert run.wait() == [0, 0]
    for index in range(2):
        assert "stuck: worker 1 (step 6)" in run.output(index)
    assert "stacks of worker 1" in run.output(1) and "in wait_for" in run.output(1)


def test_one_agent_alone_needs_no_address_and_no_token(agents, script):
    run = agents(script("sys.exit(0 if generation else 5)"), num_agents=1, environ={"TRIREME_TOKEN": ""})
    del run.options["rendezvous"]
    run.start(0)
    assert run.wait(0) == [0]
