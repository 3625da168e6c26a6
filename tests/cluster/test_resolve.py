import json

import pytest

from trireme.cluster.cluster import Cluster
from trireme.cluster.resolve import DETECTORS, explain, resolve
from trireme.errors import ConfigurationError

TRIREME = Cluster(workers=("t:1", "t:2"), rank=1).to_environ()
KUBERNETES = {
    "TRIREME_CLUSTER": json.dumps({"worker": {"replicas": 2, "host": "k-{index}", "port": 1}}),
    "JOB_COMPLETION_INDEX": "1",
}
TF_CONFIG = {
    "TF_CONFIG": json.dumps({"cluster": {"worker": ["f:1", "g:1"]}, "task": {"type": "worker", "index": 1}})
}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "m", "MASTER_PORT": "4000"}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[0-1]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
}
KUBEFLOW = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "j:1"}

IN_ORDER = [
    ("trireme", TRIREME),
    ("kubernetes", KUBERNETES),
    ("TF_CONFIG", TF_CONFIG),
    ("torchrun", TORCHRUN),
    ("mpi", MPI),
    ("slurm", SLURM),
    ("kubeflow", KUBEFLOW),
]


def merged(environs):
    return {name: value for environ in environs for name, value in environ.items()}


def test_an_empty_environment_is_one_local_worker():
    assert resolve({}) == Cluster()
    assert resolve({}).source == "default"


@pytest.mark.parametrize(("name", "environ"), IN_ORDER)
def test_each_detector_alone(name, environ):
    cluster = resolve(environ)
    assert (cluster.source, cluster.rank, cluster.num_workers) == (name, 1, 2)


@pytest.mark.parametrize("position", range(len(IN_ORDER)))
def test_the_order_decides(position):
    environ = merged(environ for _, environ in reversed(IN_ORDER[position:]))
    assert resolve(environ).source == IN_ORDER[position][0]


def test_the_table_above_has_every_detector():
    assert [detector.name for detector in DETECTORS] == [name for name, _ in IN_ORDER]


def test_what_a_worker_is_given_survives_every_surrounding():
    environ = {**merged(environ for _, environ in IN_ORDER), **Cluster(workers=("t:1",)).to_environ()}
    assert resolve(environ) == Cluster(workers=("t:1",))


def test_resolving_changes_nothing():
    environ = merged(environ for _, environ in IN_ORDER)
    before = dict(environ)
    resolve(environ)
    explain(environ)
    assert environ == before


def test_a_contradiction_in_the_deciding_detector_is_an_error_and_below_it_is_not():
    broken = {"TF_CONFIG": "{"}
    with pytest.raises(ConfigurationError, match="TF_CONFIG"):
        resolve({**broken, **SLURM})
    assert resolve({**broken, **TRIREME}).source == "trireme"


def lines_of(text):
    return {line.split()[0]: line for line in text.splitlines() if line.startswith("  ") and line[2] != " "}


def test_explain_says_who_from_which_variables_and_what_the_others_said():
    text = explain({**TF_CONFIG, **SLURM, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "PATH": "/bin"})
    assert text.splitlines()[0] == "This process: worker 1 of 2, worker 0 at f:1, from TF_CONFIG"
    lines = lines_of(text)
    assert list(lines) == [detector.name for detector in DETECTORS]
    assert "decides: Cluster(worker 1 of 2" in lines["TF_CONFIG"]
    assert "DISAGREES, not used since TF_CONFIG comes first: Cluster(worker 0 of 2" in lines["slurm"]
    assert "nothing (looks for RANK and WORLD_SIZE" in lines["torchrun"]
    assert "SLURM_PROCID=0" in text
    assert f"TF_CONFIG={TF_CONFIG['TF_CONFIG']}" in text
    assert "PATH" not in text


def test_explain_tells_agreement_from_disagreement():
    text = explain({**TF_CONFIG, **SLURM})
    assert "agrees with TF_CONFIG: Cluster(worker 1 of 2" in lines_of(text)["slurm"]
    assert "DISAGREES" not in text


def test_explain_of_a_shell_inside_an_allocation():
    text = explain({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_NTASKS": "4"})
    assert text.splitlines()[0].startswith("This process: worker 0 of 1, by default")
    assert "start the script with `srun`" in lines_of(text)["slurm"]
    assert "SLURM_JOB_ID=7" in text


def test_explain_never_raises_for_what_the_environment_says():
    text = explain({"TF_CONFIG": "{", **SLURM, "SLURM_JOB_ID": ""})
    assert text.splitlines()[0] == "This process: nobody knows, because TF_CONFIG cannot be read:"
    assert "no JSON" in text
    assert "decides, with an error" in lines_of(text)["TF_CONFIG"]
    assert "an error, not used: The variables of Slurm" in lines_of(text)["slurm"]


def test_explain_does_not_flood_the_terminal():
    workers = tuple(f"n{index}:1" for index in range(5000))
    text = explain(Cluster(workers=workers).to_environ())
    assert max(map(len, text.splitlines())) < 300
