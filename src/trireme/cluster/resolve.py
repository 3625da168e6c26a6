"""Which cluster this process belongs to: the detectors in order, and what each of them says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from trireme.cluster import kubeflow, kubernetes, mpi, slurm, tf_config, torchrun, trireme_environ
from trireme.cluster.cluster import Cluster
from trireme.errors import ConfigurationError


@dataclass(frozen=True)
class Detector:
    """One kind of cluster: its name, how to recognise it, and the variables it reads."""

    name: str
    detect: Callable[[Mapping[str, str]], Cluster | None]
    needs: str
    variables: tuple[str, ...]


def _detector(name: str, module: ModuleType) -> Detector:
    return Detector(name, module.detect, module.NEEDS, module.VARIABLES)


# What was written for this very process comes first: a launcher inside an allocation or a pod leaves
# the variables of what surrounds it in place.
DETECTORS = (
    _detector("trireme", trireme_environ),
    _detector("kubernetes", kubernetes),
    _detector("TF_CONFIG", tf_config),
    _detector("torchrun", torchrun),
    _detector("mpi", mpi),
    _detector("slurm", slurm),
    _detector("kubeflow", kubeflow),
)


def resolve(environ: Mapping[str, str]) -> Cluster:
    """The cluster of the first detector that recognises the environment, else a single local worker.

    Raises:
        ConfigurationError: that detector's variables contradict each other.
    """
    for detector in DETECTORS:
        cluster = detector.detect(environ)
        if cluster is not None:
            return cluster
    return Cluster()


def explain(environ: Mapping[str, str]) -> str:
    """Who this process is and from which variables, with the detectors in order and what each said.

    Never raises for what the environment says: a contradiction is part of the explanation.
    """
    findings = [(detector, _ask(detector, environ)) for detector in DETECTORS]
    speaking = [(detector, said) for detector, said in findings if said is not None]
    lines = ["Detectors, in order (the first that finds a cluster decides):"]
    for detector, said in findings:
        lines += _lines(detector, said, speaking, environ)
    return "\n".join([_headline(speaking), "", *lines])


def _ask(detector: Detector, environ: Mapping[str, str]) -> Cluster | ConfigurationError | None:
    try:
        return detector.detect(environ)
    except ConfigurationError as error:
        return error


Finding = tuple[Detector, Cluster | ConfigurationError]


def _headline(speaking: list[Finding]) -> str:
    if not speaking:
        return f"This process: {Cluster().describe()} (no variable describes a cluster)"
    detector, said = speaking[0]
    if isinstance(said, ConfigurationError):
        return f"This process: nobody knows, because {detector.name} cannot be read:\n{said}"
    return f"This process: {said.describe()}"


def _lines(
    detector: Detector,
    said: Cluster | ConfigurationError | None,
    speaking: list[Finding],
    environ: Mapping[str, str],
) -> list[str]:
    lines = [f"  {detector.name:<11}{_verdict(detector, said, speaking)}"]
    return lines + [
        f"{'':13}{name}={_shortened(environ[name])}" for name in detector.variables if name in environ
    ]


def _verdict(detector: Detector, said: Cluster | ConfigurationError | None, speaking: list[Finding]) -> str:
    if said is None:
        return f"nothing (looks for {detector.needs})"
    deciding, decision = speaking[0]
    if isinstance(said, ConfigurationError):
        return "decides, with an error" if deciding is detector else f"an error, not used: {said}"
    if deciding is detector:
        return f"decides: {said!r}"
    if isinstance(decision, Cluster) and _agree(said, decision):
        return f"agrees with {deciding.name}: {said!r}"
    return f"DISAGREES, not used since {deciding.name} comes first: {said!r}"


def _agree(first: Cluster, second: Cluster) -> bool:
    """Whether two detectors see the same place in the same crowd; ports and names may differ."""
    return (first.role, first.rank, first.num_workers) == (second.role, second.rank, second.num_workers)


def _shortened(value: str, longest: int = 200) -> str:
    return value if len(value) <= longest else f"{value[:longest]}... ({len(value)} characters)"
