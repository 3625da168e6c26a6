"""The bytes between two agents: who both are is proved first, and every message after it is sealed.

Both know the run's token. It never travels: each side answers the other's random challenge with an HMAC of it, and
from both challenges comes a key for this one connection, with which every message is signed together with its
direction and its number. So nobody without the token can join, change, replay or insert anything. Nothing is
encrypted: whoever can listen can read.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

from trireme.errors import ProtocolError

_MAGIC = b"trireme agent 1\n"
_CHALLENGE_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size
_LENGTH = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
_MAX_MESSAGE_BYTES = 1 << 22


def key_of(token: str) -> bytes:
    """The key that all agents of a run compute from its token."""
    return hashlib.sha256(b"trireme agents: " + token.encode()).digest()


class Channel:
    """One end of a connection, without its socket: bytes in, messages out, and the other way round.

    Args:
        key: what both ends must know.
        is_server: whether this end was connected to. Its challenge goes first, and the other end proves itself
            first: who cannot, learns nothing.

    Attributes:
        outgoing: bytes to be sent, from the first on; whoever sends some removes them.
        is_open: whether both ends have proved themselves.
    """

    def __init__(self, key: bytes, is_server: bool) -> None:
        self.outgoing = bytearray()
        self.is_open = False
        self._key = key
        self._is_server = is_server
        self._incoming = bytearray()
        self._own_challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        self._challenge = b""
        self._session_key = b""
        self._num_sent = self._num_received = 0
        if is_server:
            self.outgoing += _MAGIC + self._own_challenge

    def send(self, message: bytes) -> None:
        """Signs a message and puts it behind what is to be sent."""
        seal = self._seal(self._is_server, self._num_sent, message)
        self.outgoing += _LENGTH.pack(len(message)) + seal + message
        self._num_sent += 1

    def receive(self, data: bytes) -> list[bytes]:
        """The messages that are complete with these bytes.

        Raises:
            ProtocolError: they do not come from somebody who knows the key.
        """
        self._incoming += data
        if not self.is_open and not (self._greet_client() if self._is_server else self._greet_server()):
            return []
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _greet_client(self) -> bool:
        answer = self._take(_CHALLENGE_BYTES + _PROOF_BYTES)
        if answer is None:
            return False
        self._challenge, proof = answer[:_CHALLENGE_BYTES], answer[_CHALLENGE_BYTES:]
        self._check(proof, self._prove(b"client"))
        self.outgoing += self._prove(b"server")
        return self._open()

    def _greet_server(self) -> bool:
        if not self._challenge:
            greeting = self._take(len(_MAGIC) + _CHALLENGE_BYTES)
            if greeting is None:
                return False
            if not greeting.startswith(_MAGIC):
                raise ProtocolError(
                    f"what answers there is no agent of this version: it says {greeting[:16]!r}"
                )
            self._challenge = greeting[len(_MAGIC) :]
            self.outgoing += self._own_challenge + self._prove(b"client")
        proof = self._take(_PROOF_BYTES)
        if proof is None:
            return False
        self._check(proof, self._prove(b"server"))
        return self._open()

    def _open(self) -> bool:
        self._session_key = self._prove(b"session")
        self.is_open = True
        return True

    def _prove(self, purpose: bytes) -> bytes:
        own, other = self._own_challenge, self._challenge
        challenges = own + other if self._is_server else other + own
        return hmac.digest(self._key, purpose + challenges, "sha256")

    def _check(self, proof: bytes, expected: bytes) -> None:
        if not hmac.compare_digest(proof, expected):
            raise ProtocolError("the other side does not know the token of this run")

    def _seal(self, is_from_server: bool, number: int, message: bytes) -> bytes:
        signed = (b"server" if is_from_server else b"client") + _NUMBER.pack(number) + message
        return hmac.digest(self._session_key, signed, "sha256")

    def _next(self) -> bytes | None:
        if len(self._incoming) < _LENGTH.size + _PROOF_BYTES:
            return None
        (length,) = _LENGTH.unpack_from(self._incoming)
        if length > _MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {length} bytes: expected at most {_MAX_MESSAGE_BYTES}")
        whole = self._take(_LENGTH.size + _PROOF_BYTES + length)
        if whole is None:
            return None
        sealed = whole[_LENGTH.size :]
        seal, message = sealed[:_PROOF_BYTES], sealed[_PROOF_BYTES:]
        self._check(seal, self._seal(not self._is_server, self._num_received, message))
        self._num_received += 1
        return message

    def _take(self, length: int) -> bytes | None:
        """The next bytes, when that many have come."""
        if len(self._incoming) < length:
            return None
        taken = bytes(self._incoming[:length])
        del self._incoming[:length]
        return taken
