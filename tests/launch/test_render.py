"""The command and the environment of every worker, as values."""

import sys

import pytest

from trireme.cluster.cluster import Cluster
from trireme.cluster.resolve import resolve
from trireme.launch.job import MODULE, Job
from trireme.launch.render import Port, Provisions, render, render_servers
from trireme.launch.variables import LAUNCHER, OF_ONE_WORKER

PORTS = (Port(4000, 20), Port(4001, 21), Port(4002, 22), Port(4003, 23))


def environs(job: Job) -> list[dict[str, str]]:
    ports = PORTS[: job.num_workers] if job.num_workers > 1 else ()
    return [
        dict(spec.environ) for spec in render(job, Provisions("/logs", 77, {"TRIREME_BOARD_FD": 9}, ports))
    ]


def test_command():
    job = Job("my scripts/train.py", ("--x", "a b"), flags=("-u", "-X", "dev"), strategy="mirrored")
    (spec,) = render(job, Provisions("/logs"))
    assert spec.argv == (
        sys.executable, "-u", "-X", "dev", "-P", "-m", "trireme.launch.bootstrap",
        "--strategy=mirrored", "script", "my scripts/train.py", "--x", "a b",
    )  # fmt: skip


def test_command_of_a_module_under_an_interpreter_with_a_safe_path():
    (spec,) = render(Job("package.train", kind=MODULE, is_path_safe=True), Provisions("/logs"))
    assert spec.argv[-3:] == ("--safe-path", "module", "package.train")


def test_every_worker_learns_who_it_is():
    job = Job("t.py", num_workers=3)
    for rank, environ in enumerate(environs(job)):
        cluster = resolve(environ)
        assert cluster.workers == ("127.0.0.1:4000", "127.0.0.1:4001", "127.0.0.1:4002")
        assert (cluster.rank, cluster.run_id, cluster.source) == (rank, job.run_id, "trireme")
        assert environ["TRIREME_FAILURE_FILE"] == f"/logs/worker-{rank}.failure.json"
        assert environ["TRIREME_PORT_FD"] == str(20 + rank)
        assert environ["TRIREME_BOARD_FD"] == "9"


def test_a_worker_inherits_its_own_port_only():
    specs = render(Job("t.py", num_workers=2), Provisions("/logs", 77, {"TRIREME_BOARD_FD": 9}, PORTS[:2]))
    assert [spec.fds for spec in specs] == [(9, 20), (9, 21)]


def test_a_lone_worker_needs_no_port():
    (environ,) = environs(Job("t.py"))
    assert resolve(environ).workers == ("127.0.0.1:0",)
    assert "TRIREME_PORT_FD" not in environ


def test_what_all_workers_share():
    job = Job("t.py", num_workers=2, seed=5, timeout_s=30, backend="torch")
    first, second = environs(job)
    for name, value in {
        "KERAS_BACKEND": "torch",
        "TRIREME_BACKEND": "torch",
        "TRIREME_SEED": "5",
        "TRIREME_TIMEOUT_S": "30",
        "TRIREME_LOG_DIR": "/logs",
        "TRIREME_RELAUNCHED": "1",
        LAUNCHER: f"77.{job.launch_id}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }.items():
        assert first[name] == second[name] == value


@pytest.mark.parametrize(
    ("num_cores", "num_workers", "threads", "interop"),
    [
        (8, 2, "4", "4"),
        (8, 3, "2", "2"),
        # A waiting collective holds one thread, so there are two at least.
        (2, 2, "1", "2"),
        (1, 4, "1", "2"),
        (8, 1, "8", "8"),
    ],
)
def test_threads_split_the_cores(num_cores, num_workers, threads, interop):
    for environ in environs(Job("t.py", num_cores=num_cores, num_workers=num_workers)):
        assert environ["OMP_NUM_THREADS"] == environ["TF_NUM_INTRAOP_THREADS"] == threads
        assert environ["TF_NUM_INTEROP_THREADS"] == interop


def test_the_users_own_settings_win():
    own = {"OMP_NUM_THREADS": "7", "TF_NUM_INTEROP_THREADS": "5", "TF_CPP_MIN_LOG_LEVEL": "0", "PATH": "/bin"}
    for environ in environs(Job("t.py", num_cores=8, num_workers=2, environ=own)):
        assert {name: environ[name] for name in own} == own
        assert environ["TF_NUM_INTRAOP_THREADS"] == "4"


def test_one_gpu_for_each_worker():
    job = Job("t.py", num_workers=2, gpus=("3", "GPU-5"), environ={"CUDA_VISIBLE_DEVICES": "3,GPU-5"})
    assert [environ["CUDA_VISIBLE_DEVICES"] for environ in environs(job)] == ["3", "GPU-5"]


def test_a_jax_worker_gets_as_many_gpus_as_it_has_replicas():
    job = Job("t.py", backend="jax", num_workers=2, replicas_per_worker=2, gpus=("0", "1", "2", "3"))
    assert [environ["CUDA_VISIBLE_DEVICES"] for environ in environs(job)] == ["0,1", "2,3"]
    (alone,) = environs(Job("t.py", backend="jax", replicas_per_worker=2, gpus=("0", "1", "2")))
    assert alone["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_without_gpus_what_cuda_sees_is_left_alone():
    (environ,) = environs(Job("t.py", environ={"CUDA_VISIBLE_DEVICES": "-1"}))
    assert environ["CUDA_VISIBLE_DEVICES"] == "-1"


DEVICES = "--xla_force_host_platform_device_count="


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, f"{DEVICES}4"),
        ("--xla_dump_to=/x", f"--xla_dump_to=/x {DEVICES}4"),
        # Enough already.
        (f"{DEVICES}8", f"{DEVICES}8"),
    ],
)
def test_jax_on_a_cpu_has_a_device_for_each_replica(own, expected):
    environ = {} if own is None else {"XLA_FLAGS": own}
    (worker,) = environs(Job("t.py", backend="jax", replicas_per_worker=4, environ=environ))
    assert worker["XLA_FLAGS"] == expected


def test_jax_workers_of_one_replica_share_the_cores():
    first, second = environs(Job("t.py", backend="jax", num_workers=2, num_cores=8))
    assert first["NPROC"] == second["NPROC"] == "4"
    assert "XLA_FLAGS" not in first
    assert "NPROC" not in environs(Job("t.py", backend="jax", replicas_per_worker=4, num_cores=8))[0]


def test_nothing_of_an_outer_launcher_is_handed_on():
    outer = {name: "outer" for name in OF_ONE_WORKER}
    for environ in environs(Job("t.py", num_workers=2, environ=outer)):
        assert "outer" not in environ.values()


def test_a_worker_among_those_of_other_machines():
    cluster = Cluster(workers=("10.0.0.1:2222", "10.0.0.2:2222"), rank=1, source="TF_CONFIG")
    (environ,) = environs(Job("t.py", cluster=cluster))
    seen = resolve(environ)
    assert (seen.workers, seen.rank) == (cluster.workers, 1)
    assert environ["TRIREME_FAILURE_FILE"] == "/logs/worker-1.failure.json"


def test_a_worker_that_shares_its_machine_with_workers_that_others_started():
    cluster = Cluster(workers=("a:1", "a:2", "b:1", "b:2"), rank=3)
    job = Job("t.py", cluster=cluster, gpus=("0", "1"), num_cores=8)
    (environ,) = environs(job)
    assert environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert environ["OMP_NUM_THREADS"] == "4"
    # A batch system that shows each task its own device shows it as the only one.
    (environ,) = environs(Job("t.py", cluster=cluster, gpus=("0",)))
    assert environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_servers_know_the_workers_and_have_secrets_of_their_own():
    job = Job("t.py", num_workers=2, num_servers=2, backend="jax", flags=("-u",))
    secrets = {"worker": {"KEY": "of workers"}, "server": {"KEY": "of servers"}}
    provisions = Provisions("/logs", 77, {"TRIREME_BOARD_FD": 9}, PORTS[:2], PORTS[2:], secrets)
    for rank, spec in enumerate(render_servers(job, provisions)):
        assert spec.argv == (sys.executable, "-u", "-P", "-m", "trireme.launch.server_process")
        cluster = resolve(spec.environ)
        assert (cluster.role, cluster.rank, cluster.run_id) == ("server", rank, job.run_id)
        assert cluster.workers == ("127.0.0.1:4000", "127.0.0.1:4001")
        assert cluster.servers == ("127.0.0.1:4002", "127.0.0.1:4003")
        assert spec.environ["KEY"] == "of servers"
        assert spec.environ["TRIREME_FAILURE_FILE"] == f"/logs/server-{rank}.failure.json"
        # The board has a line for each worker and none for servers, which compute on the CPU.
        assert "TRIREME_BOARD_FD" not in spec.environ
        assert (spec.environ["CUDA_VISIBLE_DEVICES"], spec.environ["JAX_PLATFORMS"]) == ("-1", "cpu")
        assert spec.fds == ()
    for spec in render(job, provisions):
        assert resolve(spec.environ).servers == ("127.0.0.1:4002", "127.0.0.1:4003")
        assert spec.environ["KEY"] == "of workers"
        # Nobody connects to a worker, and one that is started again would find its socket closed.
        assert "TRIREME_PORT_FD" not in spec.environ
