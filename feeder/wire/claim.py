"""How a client of this machine asks for its session's slots: over a unix socket beside the ipc one.

    client                                  node process, listening at PATH.slots
      claim: prefix, session  ───────────►
                              ◄───────────  answer: prefix, no text; the descriptor comes with it
                              ◄───────────  answer: prefix, why not
      farewell                ───────────►  the client reads the slots no more
      (connection ends)       ───────────►  the same; without a farewell, the client has died

ZeroMQ cannot pass descriptors, so this takes a socket of its own; whoever may connect to one of the
two files may connect to the other. Each line is a packet (SOCK_SEQPACKET); the prefix is that of
``messages``, version included. The session's number is random and known to its client only.

Invariant: ``decode_*`` returns what is stated or raises ProtocolError, whatever the bytes are.
"""

import struct
from typing import Final

from feeder.errors import ProtocolError
from feeder.wire.messages import MAGIC, PROTOCOL_VERSION, VersionMismatch

CLAIM_SUFFIX: Final = ".slots"
"""What the door's path has after that of the ipc endpoint."""

CLAIM_BYTES: Final = 12
FAREWELL: Final = b"."
ANSWER_BYTES_MAX: Final = 1024

_CLAIM: Final = struct.Struct("<3sBQ")
_PREFIX: Final = MAGIC + bytes([PROTOCOL_VERSION])


def claim_path(endpoint: str) -> str | None:
    """Return where the slots of the node process at an endpoint are claimed; None if nowhere."""
    if not endpoint.startswith("ipc://"):
        return None
    return endpoint.removeprefix("ipc://") + CLAIM_SUFFIX


def encode_claim(session: int) -> bytes:
    """Return the packet that claims the slots of a session."""
    return _CLAIM.pack(MAGIC, PROTOCOL_VERSION, session)


def decode_claim(packet: bytes) -> int:
    """Return the session whose slots are claimed; ProtocolError when the packet is no claim."""
    _check_prefix(packet)
    if len(packet) != CLAIM_BYTES:
        raise ProtocolError(f"a claim of {len(packet)} bytes, not of {CLAIM_BYTES}")
    session: int = _CLAIM.unpack(packet)[2]
    return session


def encode_answer(refusal: str = "") -> bytes:
    """Return the answer to a claim: granted, or the reason why not."""
    return (_PREFIX + refusal.encode())[:ANSWER_BYTES_MAX]


def decode_answer(packet: bytes) -> str:
    """Return why the claim was refused, or "" when it was granted."""
    _check_prefix(packet)
    return packet[len(_PREFIX) :].decode(errors="replace")


def _check_prefix(packet: bytes) -> None:
    if len(packet) < len(_PREFIX) or not packet.startswith(MAGIC):
        raise ProtocolError("what came to the slots' socket is no message of feeder")
    if not packet.startswith(_PREFIX):
        raise VersionMismatch(packet[len(MAGIC)])
