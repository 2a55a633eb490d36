"""A channel between two processes of the daemon: a SOCK_SEQPACKET pair, one message a packet.

Packets arrive whole and in order and can carry a file descriptor. When the other process ends,
however it ends, the channel reads as closed. Messages are tagged structs in MessagePack.
"""

import socket
import sys
from typing import Any, Final, Generic, TypeVar

import msgspec

from feeder.errors import ResourceError

Outgoing = TypeVar("Outgoing", bound=msgspec.Struct)
Incoming = TypeVar("Incoming", bound=msgspec.Struct)

_PACKET_BYTES: Final = 128 * 1024
"""Largest packet; below the kernel's default socket buffer (net.core.wmem_default, 208 KiB)."""

_ONE_FD_BYTES: Final = socket.CMSG_SPACE(4)


class ChannelClosedError(Exception):
    """The process at the other end has ended or closed its end."""


class ChannelFullError(Exception):
    """The process at the other end does not read, and the buffer is full."""


class Channel(Generic[Outgoing, Incoming]):
    """One end of the pair, which takes over its socket; ``incoming`` is a union of structs."""

    def __init__(self, end: socket.socket, incoming: Any) -> None:
        self._socket = end
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Incoming] = msgspec.msgpack.Decoder(incoming)
        self._buffer = memoryview(bytearray(_PACKET_BYTES))

    def fileno(self) -> int:
        return self._socket.fileno()  # -1 once closed

    def set_timeout(self, timeout_s: float | None) -> None:
        """Let send and receive block for ``timeout_s`` at most; 0: not at all, None: for ever."""
        self._socket.settimeout(timeout_s)

    def send(self, message: Outgoing, fd: int | None = None) -> None:
        """Send a message, with a duplicate of the descriptor ``fd`` if given.

        Raises ChannelClosedError, or ChannelFullError after the timeout.
        """
        packet = self._encoder.encode(message)
        if len(packet) > _PACKET_BYTES:
            raise ResourceError(
                f"a {type(message).__name__} of {len(packet)} bytes does not fit into a packet of "
                f"{_PACKET_BYTES}: serve fewer datasets, or give them shorter names and paths"
            )
        try:
            if fd is None:
                self._socket.send(packet)
            else:
                socket.send_fds(self._socket, [packet], [fd])
        except (BlockingIOError, TimeoutError) as error:
            raise ChannelFullError from error
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosedError from error

    def receive(self) -> Incoming | None:
        """Receive the next message, None without one within the timeout; ChannelClosedError."""
        return self.receive_with_fd()[0]

    def receive_with_fd(self) -> tuple[Incoming | None, int | None]:
        """Receive the next message and the descriptor with it, which the caller closes."""
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], _ONE_FD_BYTES)
        except (BlockingIOError, TimeoutError):
            return None, None
        except ConnectionResetError as error:
            raise ChannelClosedError from error
        if size == 0:
            raise ChannelClosedError
        fd = int.from_bytes(ancillary[0][2], sys.byteorder) if ancillary else None
        return self._decoder.decode(self._buffer[:size]), fd

    def close(self) -> None:
        self._socket.close()
