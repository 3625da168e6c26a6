import json

import pytest
from benchmarks import exactness_of_peers as peers

from tests.docs.markdown import ROOT

RIGHT = {name: list(right) for name, (_, *right) in peers.CASES.items()}
RESULT = {
    "date": "2026-01-02T03:04:05+00:00",
    "versions": {"keras": "3"},
    "ways": {
        "one device": RIGHT,
        "MirroredStrategy": {**RIGHT, "last batch of 1": [3.0, 52.941176]},
        "DataParallel": {**RIGHT, "last batch of 1": "ValueError: does not divide"},
    },
}


def test_what_is_not_one_devices_stands_out():
    [line] = [line for line in peers.table(RESULT).splitlines() if line.startswith("| last batch of 1")]
    right, one_device, mirrored, parallel = [cell.strip() for cell in line.strip("|").split("|")][1:]
    assert right == one_device == "6 / 52.9412"
    assert mirrored == "**3 / 52.9412**" and parallel == "**error**"
    assert "- DataParallel: `ValueError: does not divide`" in peers.table(RESULT)


def test_only_what_is_between_the_marks_is_replaced():
    page = f"before\n{peers.BEGIN}\nwhat was there\n{peers.END}\nafter\n"
    written = peers.with_table(page, RESULT)
    assert written.startswith("before\n") and written.endswith("after\n") and "what was there" not in written
    assert peers.with_table(written, RESULT) == written


def test_the_page_is_written_from_the_results_that_are_kept():
    result = json.loads(peers.RESULTS.read_text())
    assert peers.with_table(peers.PAGE.read_text(), result) == (ROOT / "docs" / "exactness.md").read_text()


@pytest.mark.parametrize("way", ["one device", "trireme, tensorflow", "trireme, jax", "trireme, torch"])
def test_the_results_that_are_kept_have_the_right_numbers_where_they_are_promised(way):
    found = json.loads(peers.RESULTS.read_text())["ways"][way]
    for name, right in RIGHT.items():
        assert found[name] == pytest.approx(right, rel=1e-5), name
