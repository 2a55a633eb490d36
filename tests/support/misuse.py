"""Clients that misuse a daemon, with raw bytes that the real client never sends."""

import socket
import struct
from collections.abc import Mapping

from tests.support.daemon import DEADLINE_S

GREETING = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE, _LONG, _COMMAND = 1, 2, 4


def dial(endpoint: str) -> socket.socket:
    if endpoint.startswith("ipc://"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(DEADLINE_S)
        try:
            connection.connect(endpoint.removeprefix("ipc://"))
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), DEADLINE_S)


def dial_zmtp(endpoint: str, *, claims: Mapping[bytes, bytes] | None = None) -> socket.socket:
    """Connect and do the ZMTP handshake as a DEALER; then frames can be sent.

    ``claims`` are additional properties to send in it.
    """
    connection = dial(endpoint)
    try:
        _shake_hands(connection, {b"Socket-Type": b"DEALER", b"Identity": b""} | (claims or {}))
    except BaseException:
        connection.close()
        raise
    return connection


def _shake_hands(connection: socket.socket, properties: Mapping[bytes, bytes]) -> None:
    connection.sendall(GREETING)
    remaining = len(GREETING)
    while remaining:
        piece = connection.recv(remaining)
        if not piece:
            raise ConnectionResetError
        remaining -= len(piece)
    body = b"\x05READY" + b"".join(
        bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
        for name, value in properties.items()
    )
    connection.sendall(bytes([_COMMAND, len(body)]) + body)
    if not connection.recv(4096):
        raise ConnectionResetError


def frame(body: bytes, *, more: bool = False) -> bytes:
    flags = _MORE if more else 0
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | _LONG]) + struct.pack(">Q", len(body)) + body
