"""Requests to a cluster's API server, through `kubectl` where there is one, else through the `kubernetes` package.

Both know how to log in; which address, certificates and tokens there are is theirs to find out. What is asked
for, and what an answer means, is decided elsewhere.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from trireme.errors import ClusterRefused, ClusterUnreachable, UsageError
from trireme.launch.linux import die_with_parent

REQUEST_TIMEOUT_S = 30.0
# A log may be silent for as long as a step takes; the API server ends what has been idle for longer.
FOLLOW_TIMEOUT_S = 4 * 3600.0
START_TIMEOUT_S = 20.0
SERVICE_ACCOUNT_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
MERGE_PATCH = "application/merge-patch+json"


class Connection(ABC):
    """A way to the API server. May be used by several threads at once."""

    namespace: str  # the one that is used where none is named

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The server's answer to one request.

        Args:
            method: GET, POST, PATCH (with a merge patch) or DELETE.
            path: of the object or the list, from `/api` or `/apis` on.
            body: an object, a patch, or the options of a deletion.
            query: what follows the question mark.

        Raises:
            ClusterRefused: the server said no; `status` is its HTTP status.
            ClusterUnreachable: there was no answer.
        """
        where = f"{path}?{urlencode(query)}" if query else path
        status, content = self._exchange(method, where, None if body is None else json.dumps(body).encode())
        if status >= 400:
            raise refusal(method, path, status, content)
        answer: dict[str, Any] = json.loads(content)
        return answer

    @abstractmethod
    def lines(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        """The lines of an answer that may go on for hours, as they come. Raises what `request` raises."""

    @abstractmethod
    def _exchange(self, method: str, where: str, body: bytes | None) -> tuple[int, bytes]:
        """The HTTP status and content of an answer."""


@contextmanager
def connect(environ: Mapping[str, str]) -> Iterator[Connection]:
    """A connection to the cluster that `kubectl` would talk to.

    Raises:
        ClusterUnreachable: `kubectl` does not start, or its configuration names no cluster.
        UsageError: neither `kubectl` nor the `kubernetes` package is there.
    """
    program = shutil.which("kubectl", path=environ.get("PATH"))
    if program is not None:
        with (
            tempfile.TemporaryDirectory(prefix="trireme-") as folder,
            _proxy(program, folder, environ) as path,
        ):
            yield KubectlConnection(path, _kubectl_namespace(program, environ))
        return
    try:
        import kubernetes  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "a cluster is reached by `kubectl`, which is not on the PATH, or by the package `kubernetes`, which is "
            "not installed: install kubectl, or type pip install 'keras-trireme[kubernetes]'"
        ) from error
    yield ClientConnection(environ)


def refusal(method: str, path: str, status: int, content: bytes) -> ClusterRefused | ClusterUnreachable:
    """The error for an answer that is none, in the server's own words."""
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        message = content.decode(errors="replace").strip()
    if status >= 500 or status == 429:
        # Too much at once, or none of our doing; among the latter what `kubectl proxy` says when nobody answers it.
        return ClusterUnreachable(f"the cluster has no answer to {method} {path} ({status}): {message}")
    return ClusterRefused(f"the cluster refused {method} {path} ({status}): {message}", status)


class KubectlConnection(Connection):
    """HTTP over the socket of a `kubectl proxy`, which adds who we are.

    The socket lies in a folder that only this user may enter; a port would be open to everybody on the machine.
    """

    def __init__(self, socket_path: str, namespace: str) -> None:
        self._socket_path = socket_path
        self.namespace = namespace

    def lines(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        with self._answer("GET", f"{path}?{urlencode(query)}", None, FOLLOW_TIMEOUT_S) as response:
            if response.status >= 400:
                raise refusal("GET", path, response.status, response.read())
            try:
                yield from iter(response.readline, b"")
            except (OSError, HTTPException) as error:
                raise ClusterUnreachable(f"the answer to GET {path} broke off: {error!r}") from error

    def _exchange(self, method: str, where: str, body: bytes | None) -> tuple[int, bytes]:
        with self._answer(method, where, body, REQUEST_TIMEOUT_S) as response:
            try:
                return response.status, response.read()
            except (OSError, HTTPException) as error:
                raise ClusterUnreachable(f"the answer to {method} {where} broke off: {error!r}") from error

    @contextmanager
    def _answer(
        self, method: str, where: str, body: bytes | None, timeout_s: float
    ) -> Iterator[HTTPResponse]:
        connection = _UnixConnection(self._socket_path, timeout_s)
        try:
            try:
                connection.request(method, where, body, {"Content-Type": _content_type(method)})
                response = connection.getresponse()
            except (OSError, HTTPException) as error:
                raise ClusterUnreachable(f"no answer to {method} {where}: {error!r}") from error
            yield response
        finally:
            connection.close()


class ClientConnection(Connection):
    """The `kubernetes` package's client, configured by the kubeconfig or the service account of a pod."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        from kubernetes import client, config

        settings: Any = client.Configuration()
        try:
            namespace = _load_configuration(config, settings, environ)
        except config.ConfigException as error:
            raise ClusterUnreachable(
                f"nothing says which cluster to talk to: {error}. Set KUBECONFIG to a file that does"
            ) from error
        self._settings = settings
        self._pool = client.ApiClient(settings).rest_client.pool_manager
        self._errors = (OSError, _urllib3_error())
        self.namespace = namespace

    def lines(self, path: str, query: Mapping[str, str]) -> Iterator[bytes]:
        response = self._call("GET", f"{path}?{urlencode(query)}", None, FOLLOW_TIMEOUT_S)
        try:
            if response.status >= 400:
                raise refusal("GET", path, response.status, response.data)
            pending = b""
            for chunk in response.stream(amt=None, decode_content=True):
                *whole, pending = (pending + chunk).split(b"\n")
                yield from (line + b"\n" for line in whole)
            if pending:
                yield pending
        except self._errors as error:
            raise ClusterUnreachable(f"the answer to GET {path} broke off: {error!r}") from error
        finally:
            response.close()

    def _exchange(self, method: str, where: str, body: bytes | None) -> tuple[int, bytes]:
        response = self._call(method, where, body, REQUEST_TIMEOUT_S)
        try:
            return response.status, response.data
        except self._errors as error:
            raise ClusterUnreachable(f"the answer to {method} {where} broke off: {error!r}") from error
        finally:
            response.release_conn()

    def _call(self, method: str, where: str, body: bytes | None, timeout_s: float) -> Any:
        """The answer of the client's own connection pool, unread, whatever its status."""
        headers = {"Content-Type": _content_type(method), "Accept": "application/json, */*"}
        # Asked for each time: tokens are renewed.
        for setting in self._settings.auth_settings().values():
            headers[setting["key"]] = setting["value"]
        host = self._settings.host
        try:
            return self._pool.request(
                method,
                host + where,
                body=body,
                headers=headers,
                timeout=timeout_s,
                preload_content=False,
                retries=False,
            )
        except self._errors as error:
            raise ClusterUnreachable(f"no answer to {method} {where} from {host}: {error}") from error


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _content_type(method: str) -> str:
    return MERGE_PATCH if method == "PATCH" else "application/json"


@contextmanager
def _proxy(program: str, folder: str, environ: Mapping[str, str]) -> Iterator[str]:
    """A running `kubectl proxy` and the path of its socket."""
    path = str(Path(folder, "kubectl"))
    # In a session of its own: Ctrl-C is for us, and we may still have something to ask.
    process = subprocess.Popen(
        [program, "proxy", f"--unix-socket={path}"],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    # It reports each request that failed, which the answers tell as well; nobody else reads its pipe.
    said: list[bytes] = []
    started = threading.Event()
    reader = threading.Thread(target=_read_all, args=(process, said, started.set), daemon=True)
    reader.start()
    try:
        if not started.wait(START_TIMEOUT_S) or not _is_listening(path):
            raise ClusterUnreachable(
                f"`kubectl proxy` did not start: {b''.join(said).decode(errors='replace').strip() or 'it said nothing'}"
            )
        yield path
    finally:
        process.terminate()
        process.wait()
        reader.join()


def _read_all(process: "subprocess.Popen[bytes]", said: list[bytes], on_first: Callable[[], None]) -> None:
    """Reads what kubectl says. Its first line comes when it serves, or instead of that."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if len(said) < 20:
                said.append(line)
            if line.startswith(b"Starting to serve"):
                on_first()
    on_first()


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.connect(path)
        return True
    return False


def _kubectl_namespace(program: str, environ: Mapping[str, str]) -> str:
    """The namespace of kubectl's current context."""
    done = subprocess.run(
        [program, "config", "view", "--minify", "--output", "jsonpath={..namespace}"],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=REQUEST_TIMEOUT_S,
    )
    return (done.stdout.strip() if done.returncode == 0 else "") or _pod_namespace()


def _pod_namespace() -> str:
    try:
        return Path(SERVICE_ACCOUNT_NAMESPACE).read_text().strip()
    except OSError:
        return "default"


def _load_configuration(config: Any, settings: Any, environ: Mapping[str, str]) -> str:
    """Fills in the client's settings; the namespace they come with."""
    kubeconfig = environ.get("KUBECONFIG") or str(
        Path(environ.get("HOME", "~"), ".kube", "config").expanduser()
    )
    if not any(Path(one).exists() for one in kubeconfig.split(os.pathsep)):
        config.load_incluster_config(client_configuration=settings)
        return _pod_namespace()
    config.load_kube_config(config_file=kubeconfig, client_configuration=settings)
    _, context = config.list_kube_config_contexts(config_file=kubeconfig)
    return str(context["context"].get("namespace") or "default")


def _urllib3_error() -> type[Exception]:
    from urllib3.exceptions import HTTPError

    return HTTPError
