"""Agents on two hosts with a cable between them: what the network, the disk, the clock and process 1 do to them."""

import os
import re
import signal
import subprocess
import textwrap
import time

import pytest

from tests.agent.agents import agents, kill, script, wait_until_gone
from tests.system.network import Network
from trireme.launch.linux import children_of

__all__ = ["agents", "script"]

WAITS = "wait_for(f'go-{generation}')\n"
PORT = 29400


class Cable:
    """Two hosts, host0 and host1, and the cable between them."""

    def __init__(self, network):
        self._network = network
        for host in ("host0", "host1"):
            network.add(host)

    def pull(self):
        self._on("host0", "ip", "link", "set", "eth0", "down")

    def plug(self):
        self._on("host0", "ip", "link", "set", "eth0", "up")

    def move_host0(self):
        """Whoever replaces host0 has another address."""
        before, after = self._network.addresses["host0"], "10.77.0.200"
        self._on("host0", "ip", "address", "delete", f"{before}/24", "dev", "eth0")
        self._on("host0", "ip", "address", "add", f"{after}/24", "dev", "eth0")
        # In place: who runs there has this very file.
        names = self._network.hosts_file
        names.write_text(names.read_text().replace(f"{before} ", f"{after} "))

    def lose(self, percent):
        """Has that share of the packets disappear, in both directions."""
        rules = f"""
        table inet loss {{
            chain incoming {{
                type filter hook input priority 0;
                iifname eth0 numgen random mod 100 < {percent} counter drop
            }}
        }}
        """
        for host in self._network.addresses:
            self._on(host, "nft", "-f", "-", text=rules)

    def num_lost(self):
        """How many packets have disappeared on the way to each host."""
        lists = [self._on(host, "nft", "list", "ruleset") for host in self._network.addresses]
        return [int(re.search(r"packets (\d+)", text)[1]) for text in lists]

    def _on(self, host, *command, text=None):
        enter = ["nsenter", f"--net={self._network.path(host)}"]
        done = subprocess.run([*enter, *command], input=text, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout


@pytest.fixture
def network():
    with Network() as network:
        yield network


@pytest.fixture
def cable(network):
    return Cable(network)


@pytest.fixture
def run(network, cable, agents, script):
    """Makes the agents of a run on the two hosts."""

    def make(code, **settings):
        hosts = [network.on(host) for host in ("host0", "host1")]
        return agents(script(code), hosts=hosts, rendezvous=f"host0:{PORT}", **settings)

    return make


def environ(heartbeat_s, timeout_s=60):
    return {"TRIREME_HEARTBEAT_S": str(heartbeat_s), "TRIREME_RENDEZVOUS_TIMEOUT_S": str(timeout_s)}


def test_a_cable_pulled_for_two_seconds_disturbs_nobody(cable, run):
    run = run(WAITS, environ=environ(2.0)).start()
    workers = run.wait_for_generation(0)
    cable.pull()
    time.sleep(2.0)
    cable.plug()
    run.let("go-0")
    assert run.wait() == [0, 0]
    assert workers == run.wait_for_generation(0)
    assert "lost" not in run.all_output()


def test_after_a_longer_cut_both_sides_have_ended_their_workers_and_the_next_generation_starts(cable, run):
    run = run(WAITS, environ=environ(0.3)).start()
    workers = run.wait_for_generation(0)
    cable.pull()
    run.wait_for_words(1, "lost the rendezvous at host0:29400 (agent 0, the chief's): it was silent for")
    run.wait_for_words(0, "agent 1")
    run.wait_for_words(0, "was lost: it was silent for")
    wait_until_gone(workers)
    cable.plug()
    run.wait_for_generation(1)
    run.let("go-1")
    assert run.wait() == [0, 0]


def test_a_cable_pulled_for_ever_ends_the_run_on_both_sides_and_says_who_was_missing(cable, run):
    run = run(WAITS, environ=environ(0.3, timeout_s=2)).start()
    workers = run.wait_for_generation(0)
    cable.pull()
    began_s = time.monotonic()
    assert run.wait() == [75, 75]
    assert time.monotonic() - began_s < 12
    wait_until_gone(workers)
    assert "waited 2 s in vain for agent 1" in run.output(0)
    assert "waited 2 s in vain for the rendezvous at host0:29400" in run.output(1)


def test_a_fifth_of_all_packets_lost_costs_time_only(cable, run):
    cable.lose(20)
    run = run(WAITS, environ=environ(2.0)).start()
    workers = run.wait_for_generation(0)
    kill(workers[1])
    run.wait_for_generation(1)
    run.let("go-1")
    assert run.wait(within_s=60.0) == [0, 0]
    assert min(cable.num_lost()) > 0


@pytest.mark.parametrize("index", [0, 1])
def test_an_agent_that_comes_back_at_another_address_is_found_by_its_name(network, cable, run, index):
    run = run(WAITS + "tell(f'workers-{generation}', os.environ['TRIREME_WORKERS'])", environ=environ(0.5))
    run.start()
    workers = run.wait_for_generation(0)
    run.kill(index)
    wait_until_gone(workers)
    cable.move_host0()
    run.start(index)
    run.wait_for_generation(1)
    run.let("go-1")
    assert run.wait() == [0, 0]
    hosts = [address.rpartition(":")[0] for address in run.wait_for_file("workers-1").split(",")]
    assert hosts == ["host0", network.addresses["host1"]]


FULL_DISK = """
mount -t tmpfs -o size=64k tmpfs "$0" && { cat /dev/zero > "$0/rest" 2>/dev/null; exec "$@"; }
"""


def test_a_full_disk_costs_the_logs_only(run, tmp_path):
    run = run("print('x' * 100_000, flush=True)\n" + WAITS, environ=environ(0.5))
    full = tmp_path / "full"
    full.mkdir()
    for index in range(2):
        run.options["log_dir"] = str(full)
        run.start(index, prefix=["unshare", "--mount", "sh", "-c", FULL_DISK, str(full)], TMPDIR=str(full))
    workers = run.wait_for_generation(0)
    kill(workers[1])
    run.wait_for_generation(1)
    run.let("go-1")
    assert run.wait() == [0, 0]
    assert "the log file takes no more" in run.output(0)
    assert "worker 1 of 2" in run.output(0) and "was killed by SIGKILL" in run.output(0)


JUMPS = """
import os, time
_real = time.time
time.time = lambda: _real() + (3600 if os.path.exists(os.environ["JUMP"]) else 0)
"""


def test_neither_a_jump_of_the_clock_nor_another_uptime_ends_anything(run, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(textwrap.dedent(JUMPS))
    jump = tmp_path / "jump"
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    run = run(
        "tell(f'time-{generation}', time.time())\n" + WAITS,
        environ={**environ(0.5), "JUMP": str(jump), "PYTHONPATH": path},
    )
    # The clock that does not jump counts from the start of each machine.
    run.start(0, prefix=["unshare", "--time", "--monotonic", "3600", "--boottime", "3600"])
    run.start(1)
    workers = run.wait_for_generation(0)
    jump.touch()
    kill(workers[0])
    run.wait_for_generation(1)
    assert float(run.wait_for_file("time-1")) - time.time() > 3000
    jump.unlink()
    run.let("go-1")
    assert run.wait() == [0, 0]
    assert "lost" not in run.all_output()


def test_as_process_1_of_its_namespace_it_hears_signals_and_buries_orphans(agents, script):
    code = """
    import subprocess
    # The middle one ends, and its child belongs to process 1.
    middle = "import subprocess; print(subprocess.Popen(['sleep', '0.2'], stdout=subprocess.DEVNULL).pid)"
    orphan = int(subprocess.run([sys.executable, "-c", middle], stdout=subprocess.PIPE).stdout)
    while os.path.exists(f"/proc/{orphan}"):
        time.sleep(0.02)
    tell("buried")
    wait_for("never")
    """
    run = agents(script(code), num_agents=1)
    del run.options["rendezvous"]
    run.start(0, prefix=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"])
    run.wait_for_file("buried")
    [process_1] = children_of(run.agents[0].pid)
    os.kill(process_1, signal.SIGTERM)
    assert run.wait(0) == [143]
