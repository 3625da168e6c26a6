import subprocess
import sys

import pytest

from trireme.errors import ConfigurationError
from trireme.parameter_server import ServerKeys, WorkerKeys, make_keys
from trireme.parameter_server.keys import SERVER_PUBLIC, SERVER_SECRET, WORKER_PUBLIC


def test_keys_travel_in_the_environment():
    servers, workers = make_keys()
    assert ServerKeys.from_environ(servers.to_environ()) == servers
    assert WorkerKeys.from_environ(workers.to_environ()) == workers
    assert make_keys()[0] != servers


def test_each_side_gets_only_its_own_secret():
    servers, workers = make_keys()
    assert workers.worker_secret not in servers.to_environ().values()
    assert servers.server_secret not in workers.to_environ().values()


def test_secrets_are_not_shown():
    servers, workers = make_keys()
    assert servers.server_secret not in repr(servers)
    assert workers.worker_secret not in repr(workers)


def test_no_keys():
    assert ServerKeys.from_environ({}) is None
    assert WorkerKeys.from_environ({"TRIREME_RANK": "0"}) is None


@pytest.mark.parametrize("name", [SERVER_PUBLIC, WORKER_PUBLIC])
def test_half_a_set_of_keys_is_not_taken_for_none(name):
    environ = make_keys()[1].to_environ()
    for broken in ({**environ, name: "short"}, {n: v for n, v in environ.items() if n != name}):
        with pytest.raises(ConfigurationError, match=name):
            WorkerKeys.from_environ(broken)


def test_a_server_that_has_only_the_public_key_of_its_workers():
    environ = make_keys()[0].to_environ()
    del environ[SERVER_SECRET]
    with pytest.raises(ConfigurationError, match=SERVER_SECRET):
        ServerKeys.from_environ(environ)


def test_without_pyzmq_the_error_names_the_extra():
    code = """
import sys
sys.modules["zmq"] = None
import trireme.parameter_server as ps
for call in (ps.make_keys, lambda: ps.serve("127.0.0.1:0", None, ps.Rules(1))):
    try:
        call()
    except Exception as error:
        assert type(error).__name__ == "UsageError" and "keras-trireme[parameter-server]" in str(error), error
    else:
        raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)
