"""A network that can be broken: a TCP proxy in front of a port of this host, in its own thread.

Faults can be switched while traffic flows: ``cut`` resets every connection and refuses new ones,
``stall`` forwards nothing but keeps connections open, ``delay`` delays each piece, ``half_close``
closes one direction. ``mend`` ends the fault; pieces that were held are then forwarded in order, so
bytes are late or lost with their connection, never changed.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, Self

PIECE_BYTES: Final = 1 << 18
_TIMEOUT_S: Final = 10.0
_NO_LINGER: Final = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST instead of FIN

Side = Literal["client", "server"]


class TcpProxy:
    """Forwards connections to a port of the loopback address; a context manager."""

    def __init__(self, port: int) -> None:
        """Listen on a port that the system chooses; connections are forwarded to ``port``."""
        self._port = port
        self._cuts = asyncio.Event()
        self._delay_s = 0.0
        self._flows = asyncio.Event()
        self._flows.set()
        self._ends = asyncio.Event()
        self.refused = 0  # connections reset at once: after ``cut``, or as nothing listened
        self.pieces_held = 0  # by a stall now, at most one for each direction of a connection
        self._links: list[dict[Side, asyncio.StreamWriter]] = []
        listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"  # where clients connect
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete,
            args=[self._run(listener)],
            name="proxy",
            daemon=True,
        )
        self._thread.start()

    def cut(self) -> None:
        """Reset all connections, and new ones until ``mend``."""
        self._switch(self._reset_all, is_cut=True)

    def stall(self) -> None:
        """Forward nothing until ``mend``; connections stay open."""
        self._switch(self._flows.clear)

    def delay(self, seconds: float) -> None:
        """Delay each piece of at most PIECE_BYTES, one after the other."""
        self._switch(delay_s=seconds)

    def half_close(self, side: Side) -> None:
        """Send one side of each connection the end of the stream (FIN)."""

        def end_side() -> None:
            for link in self._links:
                link[side].write_eof()

        self._switch(end_side)

    def mend(self) -> None:
        self._switch()

    def close(self) -> None:
        """Reset all connections and end the thread. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ends.set)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _switch(
        self,
        act: Callable[[], object] = lambda: None,
        *,
        is_cut: bool = False,
        delay_s: float = 0.0,
    ) -> None:
        """End the present fault and begin another one, in the proxy's thread."""

        async def switch() -> None:
            self._delay_s = delay_s
            (self._cuts.set if is_cut else self._cuts.clear)()
            act()  # pieces that were held are lost with connections that it resets
            if act != self._flows.clear:
                self._flows.set()

        asyncio.run_coroutine_threadsafe(switch(), self._loop).result(_TIMEOUT_S)

    def _reset_all(self) -> None:
        for link in self._links:
            for writer in link.values():
                _reset(writer)

    async def _run(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._serve, sock=listener, limit=PIECE_BYTES)
        await self._ends.wait()
        server.close()
        self._reset_all()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until an end closes it."""
        try:
            if self._cuts.is_set():
                raise ConnectionRefusedError
            answers, server = await asyncio.open_connection(
                "127.0.0.1", self._port, limit=PIECE_BYTES
            )
        except OSError:  # also where nothing listens at the moment
            self.refused += 1
            _reset(writer)
            return
        link: dict[Side, asyncio.StreamWriter] = {"client": writer, "server": server}
        self._links.append(link)
        if self._cuts.is_set():  # meanwhile
            self._reset_all()
        try:
            with suppress(OSError, RuntimeError):  # reset, or half closed
                await asyncio.gather(self._forward(reader, server), self._forward(answers, writer))
        finally:
            self._links.remove(link)
            for end in link.values():
                end.close()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(PIECE_BYTES):
            await asyncio.sleep(self._delay_s)
            if not self._flows.is_set():
                self.pieces_held += 1
                await self._flows.wait()
                self.pieces_held -= 1
            sink.write(piece)
            await sink.drain()
        sink.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    end = writer.get_extra_info("socket")
    with suppress(OSError):  # closed
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    writer.transport.abort()
