"""A small DNS server for one zone: A and AAAA records that a test changes, over UDP and TCP.

RFC 1035; a reply over 512 bytes is cut with the TC flag over UDP, so that the resolver asks again
over TCP, as for a Service of many pods.
"""

import contextlib
import ipaddress
import socket
import struct
import threading
from collections.abc import Iterable
from typing import Final, Self

_UDP_BYTES_MAX: Final = 512
_HEADER: Final = struct.Struct(">6H")
_TYPES: Final = {1: 4, 28: 6}
"""The record types A and AAAA, and the version of IP of their addresses."""

_NO_SUCH_NAME: Final = 3
_ANSWER: Final = 0x8580  # a reply, authoritative, recursion desired and available
_TRUNCATED: Final = 0x0200


class NameServer:
    """Answers for names; leaving its context ends it."""

    def __init__(self, address: str, port: int = 53) -> None:
        """Bind both sockets; OSError where this user may not have the port, or another has it."""
        self.address = address
        self.is_silent = False
        """Whether questions stay without an answer."""
        self.questions = 0
        """How many were received."""
        self._records: dict[str, list[str]] = {}
        self._udp = socket.socket(type=socket.SOCK_DGRAM)
        self._tcp = socket.socket()
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._udp.bind((address, port))
            self._tcp.bind((address, port))
        except OSError:
            self._close()
            raise
        self._tcp.listen()
        threads = (self._serve_udp, self._serve_tcp)
        self._threads = [threading.Thread(target=each, daemon=True) for each in threads]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._udp, self._tcp):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes its thread
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        self._close()

    def publish(self, name: str, addresses: Iterable[str]) -> None:
        self._records = {**self._records, name: list(addresses)}

    def _close(self) -> None:
        self._udp.close()
        self._tcp.close()

    def _serve_udp(self) -> None:
        while True:
            try:
                question, peer = self._udp.recvfrom(_UDP_BYTES_MAX)
            except OSError:
                return
            if not peer or not question:
                return
            self.questions += 1
            if not self.is_silent:
                self._udp.sendto(self._answer(question, _UDP_BYTES_MAX), peer)

    def _serve_tcp(self) -> None:
        while True:
            try:
                connection, _ = self._tcp.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                with contextlib.suppress(OSError):
                    self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        """Answer until the resolver closes: it asks for A and AAAA over one connection."""
        with connection.makefile("rb") as file:
            while size := file.read(2):
                question = file.read(int.from_bytes(size))
                self.questions += 1
                if not self.is_silent:
                    reply = self._answer(question, 65_535)
                    connection.sendall(len(reply).to_bytes(2) + reply)

    def _answer(self, question: bytes, bytes_max: int) -> bytes:
        name, end = _read_name(question, _HEADER.size)
        kind, _ = struct.unpack_from(">2H", question, end)
        asked = question[_HEADER.size : end + 4]
        number = _HEADER.unpack_from(question)[0]
        addresses = self._records.get(name)
        if addresses is None:
            return _HEADER.pack(number, _ANSWER | _NO_SUCH_NAME, 1, 0, 0, 0) + asked
        found = [ipaddress.ip_address(each) for each in addresses]
        records = [
            struct.pack(">3HIH", 0xC000 | _HEADER.size, kind, 1, 5, len(each.packed)) + each.packed
            for each in found
            if each.version == _TYPES.get(kind)
        ]
        reply = _HEADER.pack(number, _ANSWER, 1, len(records), 0, 0) + asked + b"".join(records)
        if len(reply) > bytes_max:
            return _HEADER.pack(number, _ANSWER | _TRUNCATED, 1, 0, 0, 0) + asked
        return reply


def _read_name(message: bytes, at: int) -> tuple[str, int]:
    """Return the name at an offset, which is not compressed, and the offset after it."""
    labels: list[str] = []
    while size := message[at]:
        labels.append(message[at + 1 : at + 1 + size].decode("ascii").lower())
        at += 1 + size
    return ".".join(labels), at + 1
