"""The client's side of CURVE: connecting with keys, and the reason when a handshake fails.

When keys do not match, libzmq retries silently or gives up. Only its monitor shows the reason:

    cause                                event on the client's monitor
    the key is not on the feeder's list  HANDSHAKE_FAILED_AUTH 400, no retry
    the feeder cannot read its list      HANDSHAKE_FAILED_AUTH 500, no retry
    keys on one side only                HANDSHAKE_FAILED_PROTOCOL (mechanism mismatch), no retry;
                                         or NO_DETAIL where the other side hangs up first
    server_key is another feeder's       HANDSHAKE_FAILED_NO_DETAIL, repeatedly: it hangs up

NO_DETAIL also comes from a port forwarder without a feeder behind it and from a feeder that dies.
So after the third in a row a probe reads the peer's ZMTP greeting over a connection of its own,
which shows whether a feeder is there and whether it has keys.

``feeder.client`` uses this module for its links, for status requests and to look endpoints up.
"""

import contextlib
import errno
import os
import socket
import time
from typing import Final

import zmq

from feeder.errors import PeerError
from feeder.process.backoff import Backoff
from feeder.process.name_lookup import look_up
from feeder.security.keys import ClientKeys
from feeder.wire.zap import NO_LIST

MONITORED: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
"""The events that ``HandshakeWatch`` needs; it ignores others."""

Address = str | tuple[str, int]
"""Path of a socket file, or numeric host and port."""

_HANG_UPS_MAX: Final = 3
"""A feeder that restarts or has too many connections can hang up twice."""
_HANG_UP_S: Final = 2.0
"""A handshake that fails later than this was not refused: the feeder is busy or frozen."""

_PROBE_S: Final = 0.5
_PROBE_BACKOFF_S: Final = 2.0
"""Between the first two probes; doubled after each, as a probe blocks its thread."""

_GREETING_START: Final = b"\xff" + 7 * b"\0" + b"\x01\x7f\x03\x00"  # ZMTP 3: signature, version
_GREETING_BYTES: Final = 64
_MECHANISM: Final = slice(12, 32)


class HandshakeProblem(PeerError):  # noqa: N818 -- names what happened
    """Raised when client and feeder cannot connect because of their keys."""


def dial(dealer: "zmq.Socket[bytes]", endpoint: str, keys: ClientKeys | None) -> None:
    """Begin to connect a socket to ``endpoint``, over tcp with keys.

    Raises zmq.ZMQError for what is not an endpoint.
    """
    if endpoint.startswith("tcp://["):  # not for names: libzmq would resolve them to IPv6 only
        dealer.set(zmq.IPV6, 1)
    if keys is not None and endpoint.startswith("tcp://"):
        dealer.set(zmq.CURVE_SERVERKEY, keys.server.text.encode())
        dealer.set(zmq.CURVE_PUBLICKEY, keys.own.public().text.encode())
        dealer.set(zmq.CURVE_SECRETKEY, keys.own.text.encode())
    try:
        endpoint.encode()
    except UnicodeEncodeError:  # a path that is not UTF-8
        raise zmq.ZMQError(errno.EINVAL) from None
    dealer.connect(endpoint)


class HandshakeWatch:
    """Interprets the monitor events of a socket that is connected to one endpoint."""

    def __init__(
        self, endpoint: str, keys: ClientKeys | None, *, address: str | None = None
    ) -> None:
        """``address`` is the endpoint as dialled, if its host name was resolved."""
        self._endpoint = endpoint
        self._keys = keys if endpoint.startswith("tcp://") else None
        self._connected_s = float("-inf")
        # Replaced by the numeric address once a connection shows it, so that no probe resolves a
        # name again.
        self._peer = _parse_address(address or endpoint)
        self._hang_ups = 0
        self._probe_s = 0.0  # earliest next probe: a forwarder without a feeder hangs up for ever
        self._probe_backoff = Backoff(_PROBE_BACKOFF_S)

    def on_event(self, event: int, value: int, now_s: float) -> HandshakeProblem | None:
        """Return the problem with the keys once an event shows one; blocks for 0.5 s at most."""
        match event:
            case zmq.EVENT_CONNECTED:
                self._connected_s = now_s
                if not isinstance(self._peer, str):  # a path needs no name server
                    self._peer = _peer_of(value) or self._peer
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._hang_ups = 0
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return self._explain_refusal(value)
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
                    return self._explain_mismatch()
            case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                return self._explain_hang_up(now_s)
        return None

    def _explain_refusal(self, status: int) -> HandshakeProblem:
        if self._keys is None:
            return HandshakeProblem(f"{self._endpoint} accepts no client without keys")
        if status == NO_LIST:
            return HandshakeProblem(
                f"{self._endpoint} cannot read its list of client keys and accepts no client: its "
                "log has the reason"
            )
        own = self._keys.own
        return HandshakeProblem(
            f"{self._endpoint} does not know the key of {own.name!r} (client_key, public key "
            f"{own.public().text[:8]}…): have its public key put into the feeder's client_keys"
        )

    def _explain_mismatch(self) -> HandshakeProblem:
        if self._keys is None:
            return HandshakeProblem(
                f"{self._endpoint} accepts only clients with keys: give server_key and client_key "
                "(`feeder keygen` makes yours)"
            )
        return HandshakeProblem(
            f"{self._endpoint} has no keys, so it cannot be the feeder of server_key: start it "
            "with secret_key, or leave out server_key and client_key if you trust the network"
        )

    def _explain_hang_up(self, now_s: float) -> HandshakeProblem | None:
        if now_s - self._connected_s > _HANG_UP_S:
            self._hang_ups = 0
            return None
        self._hang_ups += 1
        if self._hang_ups < _HANG_UPS_MAX:
            return None
        self._hang_ups = 0
        if now_s < self._probe_s:
            return None
        self._probe_s = now_s + self._probe_backoff.next_s()
        mechanism = probe_mechanism(self._peer)
        if mechanism not in ("NULL", "CURVE"):
            return None
        if (mechanism == "CURVE") != (self._keys is not None):
            return self._explain_mismatch()
        if self._keys is None:
            return None
        return HandshakeProblem(
            f"{self._endpoint} has another key than server_key: get that feeder's public key from "
            "its operator; if server_key is right, another machine answers at this address"
        )


def probe_mechanism(peer: Address) -> str | None:
    """Return the security mechanism in the ZMTP greeting of the peer at an address: NULL, CURVE.

    None without a greeting within 0.5 s. Every ZMTP peer sends it first, so no handshake is needed.
    """
    deadline_s = time.monotonic() + _PROBE_S
    with contextlib.suppress(OSError, ValueError), _dial(peer) as connection:
        connection.sendall(_GREETING_START)
        greeting = b""
        while len(greeting) < _GREETING_BYTES:
            connection.settimeout(max(0.001, deadline_s - time.monotonic()))
            piece = connection.recv(_GREETING_BYTES - len(greeting))
            if not piece:
                return None
            greeting += piece
        if greeting.startswith(b"\xff") and greeting[9] & 1:
            return greeting[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")
    return None


def _dial(peer: Address) -> socket.socket:
    if isinstance(peer, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_PROBE_S)
        connection.connect(peer)
        return connection
    host, port = peer
    return socket.create_connection((look_up(host, _PROBE_S), port), _PROBE_S)


def _parse_address(endpoint: str) -> Address:
    if endpoint.startswith("ipc://"):
        return endpoint.removeprefix("ipc://")
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0


def _peer_of(fd: int) -> Address | None:
    """Return the peer's address of a libzmq connection, None where it is closed by now."""
    with contextlib.suppress(OSError):
        own = os.dup(fd)
        try:
            connection = socket.socket(fileno=own)
        except OSError:  # the number was reused for something else
            os.close(own)
            return None
        with connection:
            name = connection.getpeername()
        return name if isinstance(name, str) else (str(name[0]), int(name[1]))
    return None
