"""When and what a server saves, and how it goes back to it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trireme.parameter_server.message_codec import slice_from_json, slice_to_json
from trireme.parameter_server.server_state import ServerState
from trireme.parameter_server.snapshots import Snapshot, Store
from trireme.parameter_server.updater import Updater

_log = logging.getLogger(__name__)


class Saver:
    """Keeps one server's snapshots and journal in `directory`/`run_id`/server-`rank`.

    A snapshot belongs to its run: another run begins anew, the same run goes on. While it is written, the
    server answers nobody, so `interval_s` should be many times what writing its variables takes.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        run_id: str,
        rank: int,
        interval_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings: dict[str, Any] = {}
        self._interval_s = interval_s
        self._clock = clock
        self._store = Store(Path(directory) / (quote(run_id, safe="") or "run") / f"server-{rank}")
        self._saved_s = clock()
        self._saved_version: int | None = None

    def is_due(self, state: ServerState) -> bool:
        """Is it time to save? The first time is when the variables exist: from then on there is something to lose."""
        is_first = self._saved_version is None and state.is_initialised
        return is_first or self._clock() - self._saved_s >= self._interval_s

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Keeps new settings at once: they are small, and no update tells that a snapshot would be due."""
        self.settings |= settings
        try:
            self._store.save_settings(self.settings)
        except OSError as error:
            _log.error("the settings of the updater are not saved until the next snapshot: %s", error)

    def forget_last(self) -> None:
        """Saves again at the next occasion, although no update was made."""
        self._saved_version = None

    def save(self, state: ServerState, updater: Updater) -> bool:
        """Saves if anything changed; False when the disk refuses, which must not end the training."""
        self._saved_s = self._clock()
        if not state.is_initialised or state.steps.version == self._saved_version:
            return True
        record = {
            "state": state.record(),
            "settings": self.settings,
            "slices": [slice_to_json(piece) for piece in state.slices.values()],
        }
        values = {name: updater.read(name, None) for name in state.slices}
        self._saved_version = state.steps.version
        try:
            self._store.save(Snapshot(record, {"values": values, "optimizer": updater.optimizer_state()}))
        except OSError as error:
            _log.error("no snapshot of version %d: %s", state.steps.version, error)
            self._saved_version = -1  # saved nothing, but do not try again before the interval is over
            return False
        self._saved_s = self._clock()
        return True

    def restore(self, state: ServerState, updater: Updater) -> None:
        """Goes back to the newest whole snapshot, if there is one, and its training is not over."""
        snapshot = self._store.newest()
        if snapshot is None:
            return
        if len(snapshot.record["state"]["finished"]) == state.rules.num_workers:
            _log.warning("all workers were done when the snapshot was saved: beginning anew")
            return
        state.shares.replay(self._store.journal())
        slices = [slice_from_json(content) for content in snapshot.record["slices"]]
        state.restore(snapshot.record["state"], slices)
        self.settings = dict(snapshot.record["settings"])
        updater.configure(self.settings)
        for piece in slices:
            updater.create(piece, snapshot.arrays["values"][piece.name])
        updater.restore(snapshot.arrays.get("optimizer", {}))
        if newer := self._store.settings():
            # After what the snapshot restores, which was made with its own.
            self.settings |= newer
            updater.configure(self.settings)
        self._saved_version = state.steps.version
        _log.warning("came back from a snapshot of version %d", self._saved_version)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Adds an entry to the journal of handed-out rows."""
        self._store.append(entry)

    def close(self) -> None:
        self._store.close()
