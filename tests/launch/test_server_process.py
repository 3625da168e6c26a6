"""What a server process goes by: its environment."""

import pytest

from trireme.cluster.cluster import Cluster
from trireme.errors import ConfigurationError
from trireme.launch.server_process import _address
from trireme.launch.variables import duration_s

SERVER = Cluster(
    ("train-worker-0.train:29500",),
    servers=("train-server-0.train:2222", "train-server-1.train:2222"),
    role="server",
    rank=1,
)


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({}, "train-server-1.train:2222"),
        # A pod's name may be known to others, and to itself, only a while after it has started.
        ({"TRIREME_POD_IP": "10.0.0.7"}, "10.0.0.7:2222"),
        ({"TRIREME_POD_IP": "fd00::7"}, "[fd00::7]:2222"),
    ],
)
def test_where_a_server_listens(environ, address):
    assert _address(SERVER, environ) == address


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_what_is_no_duration(text):
    with pytest.raises(ConfigurationError, match=f"NAME is '{text}': expected seconds, more than 0"):
        duration_s({"NAME": text}, "NAME", 5.0)


def test_durations():
    assert [duration_s(environ, "NAME", 5.0) for environ in ({}, {"NAME": ""}, {"NAME": "0.5"})] == [
        5.0,
        5.0,
        0.5,
    ]
