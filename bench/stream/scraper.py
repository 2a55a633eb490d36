"""Clients of a daemon's metrics: a scraper, one that hangs, and a thousand idle connections.

A process of its own, as of ``bench.stream.eyes``:

    scrape ADDRESS SECONDS COUNT    prints the seconds that each scrape took; COUNT 0 is without end
    idle ADDRESS CONNECTIONS        keeps connections open that send nothing; what the daemon closes
                                    is opened again
    hang ADDRESS                    each second requests the metrics and does not read the reply
"""

import contextlib
import itertools
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NoReturn

from feeder.process.child import die_with_parent

_TIMEOUT_S: Final = 30.0
_STEP_S: Final = 1.0
_UNREAD_BYTES: Final = 4096
"""Less than a reply, so that the rest of it stays in the daemon's kernel."""
_REQUEST: Final = b"GET /metrics HTTP/1.1\r\nHost: feeder\r\n\r\n"

Address = tuple[str, int]


def scrape(address: Address, every_s: float, count: int) -> None:
    """Scrape every ``every_s`` seconds and print how long each one took."""
    for _ in range(count) if count else itertools.count():
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
        time.sleep(max(0.0, every_s - taken_s))


def reopen(clients: list[socket.socket | None], address: Address) -> AbstractContextManager[object]:
    """Open connections that send nothing, where there is none or the server has closed it."""
    poll = select.poll()
    for client in clients:
        if client is not None:
            poll.register(client, select.POLLIN)
    closed = {fd for fd, _ in poll.poll(0)}
    for place, client in enumerate(clients):
        if client is not None:
            if client.fileno() not in closed:
                continue
            client.close()
        clients[place] = None
        with contextlib.suppress(OSError):  # refused: the next call tries again
            clients[place] = socket.create_connection(address, _TIMEOUT_S)
    return contextlib.nullcontext()


def request_unread(address: Address) -> socket.socket:
    """Return a connection whose request has been sent and whose reply is not read.

    The daemon has done with it as soon as the kernel has the reply, which keeps what the scraper
    has no room for. So that there is always one, another has to come.
    """
    client = socket.socket()
    with contextlib.suppress(OSError):
        client.settimeout(_TIMEOUT_S)
        # Before connecting, when the room is agreed upon.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BYTES)
        client.connect(address)
        client.sendall(_REQUEST)
    return client


def repeat(step: Callable[[], AbstractContextManager[object]]) -> NoReturn:
    """Each second leave what the last step returned and enter the next; print "begun" for each."""
    while True:
        with step():
            print("begun", flush=True)
            time.sleep(_STEP_S)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    host, _, port = sys.argv[3].rpartition(":")
    target = host, int(port)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        match sys.argv[2]:
            case "scrape":
                scrape(target, float(sys.argv[4]), int(sys.argv[5]))
            case "idle":
                connections: list[socket.socket | None] = [None] * int(sys.argv[4])
                repeat(lambda: reopen(connections, target))
            case "hang":
                repeat(lambda: request_unread(target))
    os._exit(0)
