import json
import logging
import os

import ml_dtypes
import numpy as np
import pytest

from tests.parameter_server.sgd import SgdUpdater
from tests.parameter_server.state_driver import PLACEMENT, StateDriver
from trireme.errors import ConfigurationError
from trireme.parameter_server import Rules, Saver
from trireme.parameter_server.server_state import ServerState
from trireme.parameter_server.snapshots import Snapshot, Store


def snapshot_of(number):
    arrays = {
        "values": {"a": np.full((3, 2), number, np.float32), "b": np.array(number, ml_dtypes.bfloat16)},
        "optimizer": {"empty": np.zeros((0, 4)), "count": np.array(number)},
    }
    return Snapshot({"number": number}, arrays)


def assert_same(one, other):
    assert one.record == other.record
    assert one.arrays.keys() == other.arrays.keys()
    for group, arrays in one.arrays.items():
        assert arrays.keys() == other.arrays[group].keys()
        for name, array in arrays.items():
            found = other.arrays[group][name]
            assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_round_trip_and_two_are_kept(tmp_path):
    store = Store(tmp_path)
    assert store.newest() is None
    for number in range(4):
        store.save(snapshot_of(number))
        assert_same(store.newest(), snapshot_of(number))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content + b"x",
        lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
        lambda content: content[:30] + bytes([content[30] ^ 1]) + content[31:],
        lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
        lambda content: b"TRPSNAP1" + b"\xff" * 8 + content[16:],
    ],
)
def test_a_damaged_snapshot_is_passed_over(tmp_path, damage, caplog):
    store = Store(tmp_path)
    store.save(snapshot_of(1))
    newest = store.save(snapshot_of(2))
    newest.write_bytes(damage(newest.read_bytes()))
    assert_same(store.newest(), snapshot_of(1))
    assert f"{newest} is damaged" in caplog.text


def test_beginning_anew_with_only_damaged_snapshots_would_hide_the_loss(tmp_path):
    store = Store(tmp_path)
    store.save(snapshot_of(1)).write_bytes(b"nothing")
    with pytest.raises(ConfigurationError, match="none of the 1 snapshots"):
        store.newest()


def test_a_full_disk_leaves_the_snapshots_before_and_the_server_alive(tmp_path, monkeypatch, caplog):
    driver = StateDriver().started()
    updater = updater_of(driver)
    saver = Saver(tmp_path, "run", 0)
    assert saver.save(driver.state, updater)
    driver.push(0, 0)

    def refuse(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        assert not saver.save(driver.state, updater)
    assert "No space left on device" in caplog.text
    assert [path.name for path in (tmp_path / "run" / "server-0").iterdir()] == ["00000001.snapshot"]
    assert saver.save(driver.state, updater)


def test_the_journal_survives_a_half_written_line(tmp_path):
    store = Store(tmp_path)
    for entry in ({"what": "open", "epoch": 0}, {"what": "hand_out", "worker": 1}):
        store.append(entry)
    with (tmp_path / "rows.journal").open("ab") as file:
        file.write(b'{"what": "don')
    again = Store(tmp_path)
    assert again.journal() == [{"what": "open", "epoch": 0}, {"what": "hand_out", "worker": 1}]
    again.append({"what": "lost", "worker": 1})
    assert [entry["what"] for entry in Store(tmp_path).journal()] == ["open", "hand_out", "lost"]
    again.append({"what": "open", "epoch": 1})
    assert Store(tmp_path).journal() == [{"what": "open", "epoch": 1}]
    for one in (store, again):
        one.close()


def updater_of(driver):
    updater = SgdUpdater()
    for piece in PLACEMENT.by_server[0]:
        updater.create(piece, np.full(piece.shape, 3, np.float32))
    updater.num_steps = 5
    return updater


def test_a_server_comes_back_as_it_was(tmp_path):
    driver = StateDriver(max_staleness=2).started()
    driver.push(0, 0)
    saver = Saver(tmp_path, "a run/7", 1)
    saver.settings = {"learning_rate": 0.25}
    assert saver.is_due(driver.state)
    saver.save(driver.state, updater_of(driver))
    assert not saver.is_due(driver.state)

    state, updater = ServerState(driver.rules, boot="other"), SgdUpdater()
    Saver(tmp_path, "a run/7", 1).restore(state, updater)
    assert state.record() == driver.state.record()
    assert state.slices == driver.state.slices
    assert (updater.learning_rate, updater.num_steps) == (0.25, 5)
    assert updater.values["w"].tolist() == [3, 3]
    updater.values["w"] -= 1  # what was read is the updater's own


@pytest.mark.parametrize(("run_id", "rank"), [("run 2", 0), ("run 1", 1)])
def test_other_runs_and_other_servers_begin_anew(tmp_path, run_id, rank):
    driver = StateDriver().started()
    Saver(tmp_path, "run 1", 0).save(driver.state, updater_of(driver))
    state = ServerState(Rules(2), boot="other")
    Saver(tmp_path, run_id, rank).restore(state, SgdUpdater())
    assert not state.is_initialised


def test_nothing_is_written_when_nothing_changed(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    driver = StateDriver().started()
    saver = Saver(tmp_path, "run", 0)
    for _ in range(3):
        assert saver.save(driver.state, updater_of(driver))
    names = [path.name for path in (tmp_path / "run" / "server-0").iterdir()]
    assert names == ["00000001.snapshot"]
    assert json.loads(json.dumps(driver.state.record()))["version"] == 0
