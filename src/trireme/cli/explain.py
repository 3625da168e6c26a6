"""`trireme explain`: who this process is, what its machine offers, and what a run would do."""

import os
from collections.abc import Mapping

import click

from trireme.cluster import machine
from trireme.cluster.cluster import Cluster
from trireme.cluster.resolve import explain as explain_cluster
from trireme.errors import TriremeError

# Variables that change how much of the machine a run uses.
LIMITS = (
    machine.CUDA_VISIBLE_DEVICES,
    machine.JAX_PLATFORMS,
    machine.JAX_NUM_CPU_DEVICES,
    machine.XLA_FLAGS,
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


@click.command
def explain() -> None:
    """Tell who this process is and what a run would do, starting nothing.

    Shows the cluster and the variables it was found in, this machine's devices, the Keras backend, and
    what `MirroredStrategy()` would do here.
    """
    environ = dict(os.environ)
    _print(
        [
            ("Cluster", explain_cluster(environ)),
            ("Machine", describe_machine(environ)),
            ("Keras", describe_backend(environ)),
            ("A run here", describe_run(environ)),
        ]
    )


def describe_machine(environ: Mapping[str, str]) -> str:
    """The cores and GPUs that a run could use, and the variables that limit them."""
    quota, allowed = machine.cpu_quota(), len(os.sched_getaffinity(0))
    cores = f"CPU cores: {machine.num_cpu_cores()}"
    visible, installed = machine.num_gpus(environ), machine.num_installed_gpus()
    return "\n".join(
        [
            cores if quota is None else f"{cores} (a quota of {quota:g} on {allowed} cores)",
            f"GPUs: {visible}" if visible == installed else f"GPUs: {visible} visible of {installed}",
            *(f"{name}={environ[name]}" for name in LIMITS if name in environ),
        ]
    )


def describe_backend(environ: Mapping[str, str]) -> str:
    """Keras' backend, where that choice comes from, and whether its installed build fits the machine."""
    backend = machine.keras_backend(environ)
    if environ.get(machine.KERAS_BACKEND):
        source = machine.KERAS_BACKEND
    elif machine.configured_backend(environ):
        source = str(machine.keras_configuration(environ))
    else:
        source = "Keras' default"
    lines = [f"backend: {backend} (from {source})"]
    if not machine.is_installed(backend):
        lines.append(f"{backend} is not installed: type pip install 'keras-trireme[{backend}]'")
    elif machine.num_gpus(environ) and not machine.can_use_gpus(backend, environ):
        lines.append(f"the installed build of {backend} cannot use the GPUs of this machine")
    return "\n".join(lines)


def describe_run(environ: Mapping[str, str]) -> str:
    """What `MirroredStrategy()`, or `trireme run` without options, would do in this environment."""
    from trireme.launch.planning import plan

    try:
        job = plan("", kind="module", environ=environ)
    except TriremeError as error:
        return f"cannot start: {error}"
    if job.cluster is not None:
        return _describe_share(job.cluster, job.num_workers, job.replicas_per_worker)
    replicas, device = job.num_workers * job.replicas_per_worker, "GPU" if job.gpus else "CPU"
    if replicas == 1:
        return (
            f"MirroredStrategy() trains 1 replica on the {device}, in the script's own process.\n"
            "For more replicas, type: trireme run --replicas N train.py"
        )
    if job.num_workers == 1:
        return (
            f"MirroredStrategy() trains {replicas} replicas on {replicas} {device} devices, "
            f"which one {job.backend} process drives."
        )
    return (
        f"MirroredStrategy() trains {replicas} replicas, one on each {device}: the script is started again as "
        f"{job.num_workers} worker processes, because a {job.backend} process drives one device."
    )


def _describe_share(cluster: Cluster, num_workers: int, replicas_per_worker: int) -> str:
    """What a process does that is one of several which somebody else starts."""
    last = cluster.rank + num_workers - 1
    who = f"worker {cluster.rank}" if num_workers == 1 else f"workers {cluster.rank} to {last}"
    replicas = f"{replicas_per_worker} replica{'' if replicas_per_worker == 1 else 's'} each"
    return (
        f"`trireme run train.py` starts {who} of the {cluster.num_workers} workers that {cluster.source} tells of, "
        f"with {replicas}.\nThe others are started elsewhere; all meet at {cluster.coordinator}."
    )


def _print(sections: list[tuple[str, str]]) -> None:
    for position, (title, text) in enumerate(sections):
        if position:
            click.echo()
        click.secho(title, bold=True)
        for line in text.splitlines():
            click.echo(f"  {line}".rstrip())
