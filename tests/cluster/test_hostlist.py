import pytest

from trireme.cluster.hostlist import expand_counts, expand_hosts, first_host


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n0", ["n0"]),
        ("n[0-3,7],m1", ["n0", "n1", "n2", "n3", "n7", "m1"]),
        ("m1,n[0-1]", ["m1", "n0", "n1"]),
        # Leading zeros belong to the name, also where the number grows a digit.
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[007]", ["n007"]),
        ("gpu-a[1,3].site", ["gpu-a1.site", "gpu-a3.site"]),
        # The last bracket turns fastest.
        ("r[0-1]n[0-1]", ["r0n0", "r0n1", "r1n0", "r1n1"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_hosts(text, hosts):
    assert expand_hosts(text) == hosts
    assert first_host(text) == hosts[0]


@pytest.mark.parametrize(
    "text",
    ["", ",", "n0,", ",n0", "n[", "n]", "n[0", "n[]", "n[3-1]", "n[a-b]", "n[0-]", "n[[0]]", "n[0-9999999]"],
)
def test_no_hosts(text):
    with pytest.raises(ValueError, match="no list of"):
        expand_hosts(text)
    assert first_host(text) is None


@pytest.mark.parametrize(
    ("text", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,2,3", [1, 2, 3]), ("1(x1)", [1])]
)
def test_counts(text, counts):
    assert expand_counts(text) == counts


@pytest.mark.parametrize("text", ["", "2(3)", "x", "1,", "-1", "2(x)"])
def test_no_counts(text):
    with pytest.raises(ValueError, match="no list of counts"):
        expand_counts(text)
