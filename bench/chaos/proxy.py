"""A network that can be broken: a TCP proxy before one port of this host, in threads of its own.

What goes wrong is said to it while traffic flows: ``cut`` resets every connection and refuses new
ones, ``stall`` lets nothing through but keeps connections open, ``delay`` holds each piece back,
``half_close`` ends the way to one side only. ``mend`` makes it pass everything again; what was held
back then goes on, in order: bytes are late or lost with their connection, never changed.
"""

import contextlib
import socket
import struct
import threading
from typing import Final, Literal, Self

PIECE_BYTES: Final = 1 << 18
_CONNECT_TIMEOUT_S: Final = 2.0
_LINGER_NOT: Final = struct.pack("ii", 1, 0)
"""With it closing resets the connection instead of saying goodbye."""

Side = Literal["client", "server"]


class TcpProxy:
    """Passes connections on to a port of the loopback address; a context manager."""

    def __init__(self, port: int) -> None:
        """Listen on a port that the system chooses; whoever comes is connected to ``port``."""
        self._port = port
        self._changed = threading.Condition()
        self._is_cut = self._is_stalled = self._is_closed = False
        self._delay_s = 0.0
        self.refused = 0
        """Connections that were reset at once, as it was cut or nobody listened there."""
        self.pieces_held = 0
        """Pieces that a stall holds back now: each direction of a connection holds one at most."""
        self._links: set[_Link] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    @property
    def endpoint(self) -> str:
        """Where clients connect."""
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connections(self) -> int:
        """How many connections it passes on now."""
        with self._changed:
            return len(self._links)

    def cut(self) -> None:
        """Reset all connections, and those that are tried until ``mend``."""
        self._set(is_cut=True)
        self._reset_links()

    def stall(self) -> None:
        """Let nothing through until ``mend``; nobody is told."""
        self._set(is_stalled=True)

    def delay(self, seconds: float) -> None:
        """Hold back each piece of PIECE_BYTES or less by so long, one after the other."""
        self._set(delay_s=seconds)

    def half_close(self, side: Side) -> None:
        """Tell one side of each connection that the other has no more to say."""
        with self._changed:
            links = list(self._links)
        for link in links:
            with contextlib.suppress(OSError):
                link.end_of(side).shutdown(socket.SHUT_WR)

    def mend(self) -> None:
        """Pass everything again."""
        self._set()

    def close(self) -> None:
        """Reset all connections and end the threads. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
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
            except OSError:  # closed
                return
            with self._changed:
                is_refused = self._is_cut or self._is_closed
            server = None if is_refused else self._connect()
            if server is None:
                self.refused += 1
                _reset(client)
                continue
            link = _Link(client, server)
            with self._changed:
                if self._is_cut or self._is_closed:  # meanwhile
                    link.reset()
                self._links.add(link)
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                for source, sink in ((client, server), (server, client)):
                    thread = threading.Thread(
                        target=self._pass_on, args=(link, source, sink), name="proxy", daemon=True
                    )
                    thread.start()
                    self._threads.append(thread)

    def _connect(self) -> socket.socket | None:
        try:
            server = socket.create_connection(("127.0.0.1", self._port), _CONNECT_TIMEOUT_S)
        except OSError:  # nobody listens there at the moment
            return None
        server.settimeout(None)
        return server

    def _pass_on(self, link: "_Link", source: socket.socket, sink: socket.socket) -> None:
        """Carry one direction of a connection until an end of it is gone."""
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                with self._changed:
                    if self._delay_s:
                        self._changed.wait_for(lambda: self._is_closed, self._delay_s)
                    self.pieces_held += 1
                    self._changed.wait_for(
                        lambda: not self._is_stalled or self._is_closed or link.is_reset
                    )
                    self.pieces_held -= 1
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        with self._changed:
            link.open_ways -= 1
            if link.open_ways:
                return
            self._links.discard(link)
        link.close()


class _Link:
    """One connection: its two ends, and how many of its directions still flow."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._client = client
        self._server = server
        self.open_ways = 2
        self.is_reset = False
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def end_of(self, side: Side) -> socket.socket:
        """Return our end towards a side."""
        return self._client if side == "client" else self._server

    def reset(self) -> None:
        """Break both ends; the threads that use them end."""
        self.is_reset = True
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free both ends, which nobody uses any more."""
        self._client.close()
        self._server.close()


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    connection.close()
