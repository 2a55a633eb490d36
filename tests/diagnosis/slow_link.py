"""A slow network: forwards connections to a port of this host at a limited rate.

    python -m tests.diagnosis.slow_link PORT BYTES_A_S PARENT_PID

Prints the port that it listens on. Both directions are forwarded; only what the server sends is
limited, over all connections together. Buffers are small, so that what waits, waits at the sender.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from feeder.process.child import die_with_parent
from tests.support.sources import REPOSITORY

PIECE_BYTES = 64 * 1024


class SlowLink:
    """The forwarder."""

    def __init__(self, port: int, bytes_a_s: float) -> None:
        self._port = port
        self._bytes_a_s = bytes_a_s
        self._free_at_s = 0.0

    async def serve(self) -> None:
        """Listen, print the port, and forward until cancelled."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0, limit=PIECE_BYTES)
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        async with server:
            await server.serve_forever()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(
                "127.0.0.1", self._port, limit=PIECE_BYTES
            )
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._forward(reader, up_writer, is_limited=False),
            self._forward(up_reader, writer, is_limited=True),
        )

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_limited: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if is_limited:
                    now_s = time.monotonic()
                    self._free_at_s = max(now_s, self._free_at_s) + len(piece) / self._bytes_a_s
                    await asyncio.sleep(self._free_at_s - now_s)
                writer.write(piece)
                await writer.drain()
        writer.close()


@contextlib.contextmanager
def slow_link(endpoint: str, bytes_a_s: float) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield an endpoint that leads to ``endpoint`` (tcp://127.0.0.1:PORT) at a limited rate, and a
    function that hangs the link: connections stay, and no byte passes any more."""
    port = endpoint.rpartition(":")[2]
    module = (sys.executable, "-m", "tests.diagnosis.slow_link")
    process = subprocess.Popen(
        [*module, port, str(bytes_a_s), str(os.getpid())],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        yield f"tcp://127.0.0.1:{port}", lambda: process.send_signal(signal.SIGSTOP)
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    die_with_parent(int(sys.argv[3]))
    asyncio.run(SlowLink(int(sys.argv[1]), float(sys.argv[2])).serve())
