"""Clients of a daemon's metrics: a scraper, one that hangs, and a thousand idle connections.

A process of its own, as of ``bench.stream.eyes``:

    scrape ADDRESS SECONDS COUNT    prints the seconds that each scrape took; COUNT 0 is without end
    idle ADDRESS CONNECTIONS        keeps connections open that send nothing; what the daemon closes
                                    is opened again
    hang ADDRESS                    each second requests the metrics and does not read the reply
"""

import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

from feeder.process.child import die_with_parent

_TIMEOUT_S: Final = 30.0
_STEP_S: Final = 1.0
_UNREAD_BYTES: Final = 4096
"""Less than a reply, so that the rest of it stays in the daemon's kernel."""
_REQUEST: Final = b"GET /metrics HTTP/1.1\r\nHost: feeder\r\n\r\n"


def scrape(address: tuple[str, int], every_s: float, count: int) -> None:
    """Scrape every ``every_s`` seconds and print how long each one took."""
    done = 0
    while not count or done < count:
        began_s = time.perf_counter()
        with socket.create_connection(address, _TIMEOUT_S) as client:
            client.sendall(_REQUEST)
            received = b""
            while data := client.recv(1 << 16):
                received += data
        taken_s = time.perf_counter() - began_s
        if not received.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(f"not metrics: {received[:80]!r}")
        print(f"{taken_s:.6f}", flush=True)
        done += 1
        time.sleep(max(0.0, every_s - taken_s))


class IdleConnections:
    """Connections that send nothing; none before ``reopen``."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        """``count`` is the number of connections."""
        self._address = address
        self._clients: list[socket.socket | None] = [None] * count

    def reopen(self) -> None:
        """Open those that the server has closed or refused."""
        poll = select.poll()
        for client in self._clients:
            if client is not None:
                poll.register(client, select.POLLIN)
        closed = {fd for fd, _ in poll.poll(0)}
        for place, client in enumerate(self._clients):
            if client is not None and client.fileno() not in closed:
                continue
            if client is not None:
                client.close()
            self._clients[place] = None
            with contextlib.suppress(OSError):
                self._clients[place] = socket.create_connection(self._address, _TIMEOUT_S)

    def close(self) -> None:
        """Close all."""
        for client in self._clients:
            if client is not None:
                client.close()


class HungScraper:
    """A scraper that does not read the reply; none before ``renew``.

    The daemon has done with it as soon as the kernel has the reply, which keeps what the scraper
    has no room for. So that there is always one, another has to come.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        """``address`` is the server's."""
        self._address = address
        self._client: socket.socket | None = None

    def renew(self) -> None:
        """Connect, send a request, and close the connection before this one."""
        self.close()
        self._client = socket.socket()
        with contextlib.suppress(OSError):
            self._client.settimeout(_TIMEOUT_S)
            # Before connecting, when the room is agreed upon.
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BYTES)
            self._client.connect(self._address)
            self._client.sendall(_REQUEST)

    def close(self) -> None:
        """Close it."""
        if self._client is not None:
            self._client.close()


def repeat(step: Callable[[], None]) -> NoReturn:
    """Do a step every second for ever, and print "begun" after the first one."""
    step()
    print("begun", flush=True)
    while True:
        time.sleep(_STEP_S)
        step()


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    host, _, port = sys.argv[3].rpartition(":")
    target = host, int(port)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        match sys.argv[2]:
            case "scrape":
                scrape(target, float(sys.argv[4]), int(sys.argv[5]))
            case "idle":
                repeat(IdleConnections(target, int(sys.argv[4])).reopen)
            case "hang":
                repeat(HungScraper(target).renew)
    os._exit(0)
