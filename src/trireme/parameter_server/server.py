"""The loop of a server process: letters in, the state's instructions carried out, snapshots on disk."""

from __future__ import annotations

import logging
import secrets
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trireme.errors import EXIT_PEER_LOST, EXIT_TERMINATED, ProtocolError
from trireme.parameter_server.gradients import NDArray
from trireme.parameter_server.instructions import (
    Apply,
    AssignSlices,
    CreateSlices,
    End,
    Instruction,
    Reconfigure,
    Record,
    Reply,
    Report,
    SaveSnapshot,
    SendValues,
)  # fmt: skip
from trireme.parameter_server.keys import ServerKeys
from trireme.parameter_server.message_codec import decode_request, encode_answer
from trireme.parameter_server.messages import Answer, Arrays, Body, Create, Done, Refused, Sender, Values
from trireme.parameter_server.rules import Rules, Tick
from trireme.parameter_server.saver import Saver
from trireme.parameter_server.server_state import ServerState
from trireme.parameter_server.transport import Letter, PathLike, ServerWire, Wire
from trireme.parameter_server.updater import Updater
from trireme.parameter_server.wire_format import Limits

_POLL_S = 0.1
_MAX_ADDRESSES = 4096
_log = logging.getLogger(__name__)


@dataclass
class Server:
    """One parameter server. Give it a wire and an updater, then call `turn` until it returns False.

    With `absence_s` it also ends when it has heard no worker for that long: `is_abandoned`.
    """

    rules: Rules
    updater: Updater
    wire: Wire
    saver: Saver | None = None
    limits: Limits = field(default_factory=Limits)
    absence_s: float | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.is_abandoned = False
        self._heard_s = self.clock()
        self.state = ServerState(self.rules, boot=secrets.token_hex(8))
        self.num_refused_letters = 0
        self._addresses: OrderedDict[Sender, Any] = OrderedDict()
        self._outgoing: list[Letter] = []
        self._is_over = False
        if self.saver:
            self.saver.restore(self.state, self.updater)

    def turn(self, timeout_s: float = _POLL_S) -> bool:
        """Handles what has arrived, waiting at most `timeout_s` for it; False once all workers are done, or gone."""
        outgoing, self._outgoing = self._outgoing, []
        for peer, frames in self.wire.exchange(outgoing, 0.0 if self._is_over else timeout_s):
            self._receive(peer, frames)
        if self._is_over and not self._outgoing:
            return False
        for instruction in self.state.handle(Tick(self.clock())):
            self._perform(instruction)
        if self.saver and self.saver.is_due(self.state):
            self.saver.save(self.state, self.updater)
        self.is_abandoned = (
            self.absence_s is not None and self.clock() - self._heard_s > self.absence_s and not self._is_over
        )
        return not self.is_abandoned

    def finish(self) -> None:
        """Saves a last time."""
        if self.saver:
            self.saver.save(self.state, self.updater)
            self.saver.close()

    def _receive(self, peer: Any, frames: Any) -> None:
        try:
            request = decode_request(frames, self.limits)
        except ProtocolError as error:
            self.num_refused_letters += 1
            if (
                self.num_refused_letters.bit_count() == 1
            ):  # the 1st, 2nd, 4th, ...: a flood must not fill the log
                _log.warning("refused message number %d: %s", self.num_refused_letters, error)
            self._outgoing.append((peer, encode_answer(Answer(0, Refused("protocol", str(error))))))
            return
        self._heard_s = self.clock()
        self._addresses[request.sender] = peer
        self._addresses.move_to_end(request.sender)
        if len(self._addresses) > _MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        for instruction in self.state.handle(request):
            self._perform(instruction)

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Reply(to, number, body):
                self._send(to, number, body)
            case SendValues(to, number, version, slices, rows):
                self._send(to, number, Values(version, self._read(slices, rows)))
            case Apply(gradients):
                self.updater.apply(gradients)
            case CreateSlices(create):
                self._create(create)
            case AssignSlices(arrays):
                self._assign(arrays)
            case Reconfigure(settings):
                self._configure(settings)
            case Record(entry) if self.saver:
                self.saver.append(entry)
            case SaveSnapshot(to, number):
                self._send(to, number, self._save_for_worker())
            case Report(text):
                _log.warning("%s", text)
            case End():
                self._is_over = True

    def _send(self, to: Sender, number: int, body: Body) -> None:
        peer = self._addresses.get(to)
        if peer is not None:
            self._outgoing.append((peer, encode_answer(Answer(number, body))))

    def _read(self, slices: tuple[str, ...], rows: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """Values in the state of this moment."""
        whole = {name: self.updater.read(name, None) for name in slices}
        return whole | {name: self.updater.read(name, wanted) for name, wanted in rows.items()}

    def _create(self, create: Create) -> None:
        if create.settings:
            self._configure(create.settings)
        for piece in create.slices:
            value = create.arrays.get(piece.name)
            # What arrived is memory of the transport: read only, and not to be kept for a whole run.
            self.updater.create(piece, None if value is None else np.array(value))

    def _assign(self, arrays: Arrays) -> None:
        for name, value in arrays.items():
            self.updater.assign(name, np.array(value))
        if self.saver:
            self.saver.forget_last()

    def _configure(self, settings: Mapping[str, Any]) -> None:
        self.updater.configure(settings)
        if self.saver:
            self.saver.configure(settings)

    def _save_for_worker(self) -> Body:
        if self.saver is None:
            return Refused("invalid", "this server has no directory for snapshots")
        is_saved = self.saver.save(self.state, self.updater)
        return (
            Done()
            if is_saved
            else Refused("invalid", "the snapshot could not be written, see the server's log")
        )


def serve(
    address: str,
    updater: Updater,
    rules: Rules,
    *,
    keys: ServerKeys | None = None,
    saver: Saver | None = None,
    limits: Limits | None = None,
    socket_directory: PathLike | None = None,
    on_listening: Callable[[str], None] | None = None,
    absence_s: float | None = None,
) -> int:
    """Runs a server at `address` until all workers are done (returns 0) or SIGTERM comes (returns 143).

    With `absence_s` it also ends when no worker was heard for that long (returns 75). `on_listening` gets the address
    with the port that was bound, when workers may connect. A last snapshot is saved in all cases.
    `socket_directory`: see `ServerWire`.
    """
    wire = ServerWire(address, keys, limits, socket_directory)
    try:
        server = Server(rules, updater, wire, saver, limits or Limits(), absence_s)
        with _termination() as is_terminated:
            if on_listening:
                on_listening(wire.address)
            while not is_terminated() and server.turn():
                pass
            server.finish()
            if server.is_abandoned:
                _log.warning("no worker was heard for %g s: nobody is left to serve", absence_s)
                return EXIT_PEER_LOST
            return EXIT_TERMINATED if is_terminated() else 0
    finally:
        wire.close()


@contextmanager
def _termination() -> Iterator[Callable[[], bool]]:
    """Has SIGTERM come? Outside the main thread, where Python takes no signals, always no."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    terminated = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    try:
        yield terminated.is_set
    finally:
        signal.signal(signal.SIGTERM, previous)
