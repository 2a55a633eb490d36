"""A network that can be broken: a TCP proxy in front of a port of this host, in its own threads.

Faults can be switched while traffic flows: ``cut`` resets every connection and refuses new ones,
``stall`` forwards nothing but keeps connections open, ``delay`` delays each piece, ``half_close``
closes one direction. ``mend`` ends the fault; pieces that were held are then forwarded in order, so
bytes are late or lost with their connection, never changed.
"""

import contextlib
import socket
import struct
import threading
from typing import Final, Literal, Self

PIECE_BYTES: Final = 1 << 18
_CONNECT_TIMEOUT_S: Final = 2.0
_NO_LINGER: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: closing sends RST instead of FIN."""

Side = Literal["client", "server"]


class TcpProxy:
    """Forwards connections to a port of the loopback address; a context manager."""

    def __init__(self, port: int) -> None:
        """Listen on a port that the system chooses; connections are forwarded to ``port``."""
        self._port = port
        self._changed = threading.Condition()
        self._is_cut = self._is_stalled = self._is_closed = False
        self._delay_s = 0.0
        self.refused = 0
        """Connections that were reset at once, because of ``cut`` or as nothing listened there."""
        self._pieces_waiting = 0
        self._links: set[_Link] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        """Where clients connect."""
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        with self._changed:
            return len(self._links)

    @property
    def pieces_held(self) -> int:
        """Pieces that a stall holds now: at most one for each direction of a connection."""
        with self._changed:
            return self._pieces_waiting if self._is_stalled else 0

    def cut(self) -> None:
        """Reset all connections, and new ones until ``mend``."""
        self._set(is_cut=True)
        self._reset_links()

    def stall(self) -> None:
        """Forward nothing until ``mend``; connections stay open."""
        self._set(is_stalled=True)

    def delay(self, seconds: float) -> None:
        """Delay each piece of at most PIECE_BYTES, one after the other."""
        self._set(delay_s=seconds)

    def half_close(self, side: Side) -> None:
        """Send one side of each connection the end of the stream (FIN)."""
        with self._changed:
            ends = [link.client if side == "client" else link.server for link in self._links]
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_WR)

    def mend(self) -> None:
        """Forward everything again."""
        self._set()

    def close(self) -> None:
        """Reset all connections and end the threads. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        self._reset_links()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set(self, *, is_cut: bool = False, is_stalled: bool = False, delay_s: float = 0.0) -> None:
        with self._changed:
            self._is_cut, self._is_stalled, self._delay_s = is_cut, is_stalled, delay_s
            self._changed.notify_all()

    def _reset_links(self) -> None:
        with self._changed:
            links = list(self._links)
        for link in links:
            link.reset()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # of one connection that was reset early, or closed
                if self._is_closed:
                    return
                continue
            with self._changed:
                is_refused = self._is_cut or self._is_closed
            server = None if is_refused else self._connect()
            if server is None:
                self.refused += 1
                with contextlib.suppress(OSError):
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                client.close()
                continue
            link = _Link(client, server)
            with self._changed:
                if self._is_cut or self._is_closed:  # meanwhile
                    link.reset()
                self._links.add(link)
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                for ends in ((client, server), (server, client)):
                    thread = threading.Thread(
                        target=self._pass_on, args=(link, *ends), name="proxy", daemon=True
                    )
                    thread.start()
                    self._threads.append(thread)

    def _connect(self) -> socket.socket | None:
        try:
            server = socket.create_connection(("127.0.0.1", self._port), _CONNECT_TIMEOUT_S)
        except OSError:  # nothing listens there at the moment
            return None
        server.settimeout(None)
        return server

    def _pass_on(self, link: "_Link", source: socket.socket, sink: socket.socket) -> None:
        """Forward one direction of a connection until either end closes it."""
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                with self._changed:
                    if self._delay_s:
                        self._changed.wait_for(lambda: self._is_closed, self._delay_s)
                    self._pieces_waiting += 1
                    self._changed.wait_for(
                        lambda: not self._is_stalled or self._is_closed or link.is_reset
                    )
                    self._pieces_waiting -= 1
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        with self._changed:
            link.open_directions -= 1
            if link.open_directions:
                return
            self._links.discard(link)
        link.client.close()
        link.server.close()


class _Link:
    """One connection: our ends towards both sides, and the number of its open directions."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.open_directions = 2
        self.is_reset = False
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reset(self) -> None:
        """Reset both ends; the threads that use them end."""
        self.is_reset = True
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                end.shutdown(socket.SHUT_RDWR)
