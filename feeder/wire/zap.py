"""ZAP (ZeroMQ RFC 27): libzmq's request to authenticate a client, and Feeder's answer. Pure.

    request  [routing id …, ""] "1.0", request id, domain, address, identity, "CURVE", public key
    answer   [routing id …, ""] "1.0", request id, status, text, user id, metadata

Invariant: ``parse_request`` returns a request that can be answered or raises ProtocolError,
whatever the frames are; a request that does not parse admits no client.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from feeder.errors import ProtocolError

DOMAIN: Final = "feeder"
ACCEPTED: Final = 200
UNKNOWN_KEY: Final = 400
NO_LIST: Final = 500
"""The list of keys cannot be read: no client is admitted until it can."""

Status = Literal[200, 400, 500]

_VERSION: Final = b"1.0"
_MECHANISM: Final = b"CURVE"
_KEY_BYTES: Final = 32
_FRAME_BYTES_MAX: Final = 256
_ENVELOPE_MAX: Final = 4
_FIELDS: Final = 7
_ADDRESS_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ZapRequest:
    """A client to authenticate; it has proven that it holds the key's secret half."""

    envelope: tuple[bytes, ...]
    """Routing frames of libzmq's, which the answer repeats."""
    number: bytes
    address: str
    public_key: bytes


def parse_request(frames: Sequence[bytes]) -> ZapRequest:
    """Return the request in ``frames``; ProtocolError for one that Feeder does not answer."""
    if b"" not in frames[: _ENVELOPE_MAX + 1]:
        raise ProtocolError("a ZAP request without an envelope")
    start = list(frames).index(b"") + 1
    fields = frames[start:]
    if len(fields) != _FIELDS or any(len(field) > _FRAME_BYTES_MAX for field in frames):
        raise ProtocolError(f"a ZAP request of {len(fields)} fields, not {_FIELDS} short ones")
    version, number, domain, address, _, mechanism, key = fields
    if version != _VERSION or domain != DOMAIN.encode():
        raise ProtocolError("a ZAP request of another version or for another domain")
    if mechanism != _MECHANISM or len(key) != _KEY_BYTES:
        raise ProtocolError("a ZAP request without a CURVE key")
    shown = address.decode("ascii", "replace")
    return ZapRequest(
        envelope=tuple(frames[:start]),
        number=number,
        address="".join(c if c.isprintable() else "?" for c in shown)[:_ADDRESS_CHARS_MAX],
        public_key=key,
    )


def format_answer(request: ZapRequest, status: Status, name: str = "") -> list[bytes]:
    """Return the frames of an answer; ``name`` is the admitted client's."""
    text = {ACCEPTED: b"OK", UNKNOWN_KEY: b"unknown key", NO_LIST: b"no list"}[status]
    head = [*request.envelope, _VERSION, request.number]
    return [*head, str(status).encode(), text, name.encode(), b""]
