"""Fresh keys for the parameter servers of a run in the cluster."""

from typing import Any

from trireme.launch.kubernetes.render import secrets
from trireme.launch.kubernetes.spec import KubernetesJob


def fresh_secrets(job: KubernetesJob) -> list[dict[str, Any]]:
    """The Secrets of a run with servers, other ones each time; nothing for a run without.

    They are no part of what `render` gives, which is the same each time and may be kept where others read it.

    Raises:
        UsageError: pyzmq, which makes keys, is not installed.
    """
    if not job.servers:
        return []
    from trireme.parameter_server.keys import make_keys

    server_keys, worker_keys = make_keys()
    return secrets(job, {"server": server_keys.to_environ(), "worker": worker_keys.to_environ()})
