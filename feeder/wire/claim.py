"""How a local client claims its session's slots, over a unix socket beside the ipc endpoint's.

    client                                  node process, listening at PATH.slots
      claim: prefix, session  ───────────►
                              ◄───────────  answer: prefix, no text; carries the descriptor
                              ◄───────────  answer: prefix, reason of the refusal
      farewell                ───────────►  the client no longer reads the slots
      (connection ends)       ───────────►  the same; without a farewell, the client has died

ZeroMQ cannot pass descriptors, so claims use a socket of their own. A process that may connect to
one of the two files may connect to the other. Each message is one packet (SOCK_SEQPACKET); the
prefix is that of ``messages``, version included. The session's number is random and known to its
client only.

Invariant: ``decode_*`` returns what is stated or raises ProtocolError, whatever the bytes are.
"""

import struct
from typing import Final

from feeder.errors import ProtocolError
from feeder.wire.messages import MAGIC, PROTOCOL_VERSION, VersionMismatch

CLAIM_SUFFIX: Final = ".slots"
"""The claim listener's path is the ipc endpoint's with this suffix."""

CLAIM_BYTES: Final = 12
FAREWELL: Final = b"."
ANSWER_BYTES_MAX: Final = 1024

_CLAIM: Final = struct.Struct("<3sBQ")
_PREFIX: Final = MAGIC + bytes([PROTOCOL_VERSION])


def claim_path(endpoint: str) -> str | None:
    """Return the path of the claim listener of an ipc endpoint; None for any other endpoint."""
    if not endpoint.startswith("ipc://"):
        return None
    return endpoint.removeprefix("ipc://") + CLAIM_SUFFIX


def encode_claim(session: int) -> bytes:
    """Return the packet that claims the slots of a session."""
    return _CLAIM.pack(MAGIC, PROTOCOL_VERSION, session)


def decode_claim(packet: bytes) -> int:
    """Return the session whose slots are claimed; ProtocolError if the packet is not a claim."""
    _check_prefix(packet)
    if len(packet) != CLAIM_BYTES:
        raise ProtocolError(f"the claim has {len(packet)} bytes instead of {CLAIM_BYTES}")
    session: int = _CLAIM.unpack(packet)[2]
    return session


def encode_answer(refusal: str = "") -> bytes:
    """Return the answer to a claim: granted, or the reason of the refusal."""
    return (_PREFIX + refusal.encode())[:ANSWER_BYTES_MAX]


def decode_answer(packet: bytes) -> str:
    """Return why the claim was refused, or "" when it was granted."""
    _check_prefix(packet)
    return packet[len(_PREFIX) :].decode(errors="replace")


def _check_prefix(packet: bytes) -> None:
    if len(packet) < len(_PREFIX) or not packet.startswith(MAGIC):
        raise ProtocolError("a packet on the claim socket is not a feeder message")
    if not packet.startswith(_PREFIX):
        raise VersionMismatch(packet[len(MAGIC)])
