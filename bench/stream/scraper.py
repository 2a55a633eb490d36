"""Clients of a daemon's metrics: one that scrapes, and a thousand that only hold connections.

A process of its own, as of ``bench.stream.eyes``:

    scrape ADDRESS SECONDS COUNT    prints the seconds that each scrape took; COUNT 0 is without end
    idle ADDRESS CONNECTIONS        keeps connections open that send nothing, and one whose scrape's
                                    reply is never read; what the daemon closes is opened again
"""

import contextlib
import os
import select
import socket
import sys
import time
from typing import Final, NoReturn

from feeder.process.parent_death import die_with_parent

_TIMEOUT_S: Final = 30.0
_REOPEN_S: Final = 1.0
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


def hold_connections(address: tuple[str, int], connections: int) -> NoReturn:
    """Keep connections open. The first one has sent a request and does not read the reply."""
    clients: dict[int, socket.socket | None] = dict.fromkeys(range(connections))
    is_begun = False
    while True:
        poll = select.poll()
        for number, client in clients.items():
            if client is None:
                with contextlib.suppress(OSError):
                    client = clients[number] = socket.create_connection(address, _TIMEOUT_S)
                    if number == 0:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                        client.sendall(_REQUEST)
            if client is not None and number:
                poll.register(client, select.POLLIN)
        if not is_begun:
            is_begun = True
            print("begun", flush=True)
        time.sleep(_REOPEN_S)
        closed = {fd for fd, _ in poll.poll(0)}
        for number, client in clients.items():
            if client is not None and client.fileno() in closed:
                client.close()
                clients[number] = None


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    host, _, port = sys.argv[3].rpartition(":")
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        if sys.argv[2] == "scrape":
            scrape((host, int(port)), float(sys.argv[4]), int(sys.argv[5]))
        else:
            hold_connections((host, int(port)), int(sys.argv[4]))
    os._exit(0)
