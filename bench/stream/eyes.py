"""``feeder-bench eyes``: what it costs to be watched.

A daemon without metrics and one with them take turns with the same batches, in random order. In the
turns of a *watched* daemon, processes on the client's core watch it; between them they are stopped.

    python -m bench.stream.eyes PARENT_PID KIND ADDRESS NUMBER

is a watcher: ``scrape`` prints the seconds that each scrape took, one every NUMBER seconds;
``idle`` keeps NUMBER connections open that send nothing, and opens those again that the daemon
closes; ``hang`` each second requests the metrics and does not read the reply. These two print a
line a second.
"""

import argparse
import contextlib
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import Final, NoReturn

from feeder.errors import ResourceError
from feeder.plan.recipe import Recipe
from feeder.process.child import die_with_parent, python_command

from ..daemon import Daemon, feeder_command, running_daemon
from ..data.material import dataset_or_synthetic
from ..fetcher import BatchFetcher
from ..line_process import LineProcess
from ..machine import describe_machine, pinned_to
from ..report import RATE, Report, compare, single
from ..rounds import Contender, measure, rates
from .streams import UNCACHED, beside

BATCH_SIZE: Final = 128
IDLE: Final = 1000
SCRAPES: Final = 100
_SCRAPE_EVERY_S: Final = 0.1
_TIMEOUT_S: Final = 60.0
_METRICS_LINE: Final = r"^feeder: metrics: http://(.*)/metrics"
_REQUEST: Final = b"GET /metrics HTTP/1.1\r\nHost: feeder\r\n\r\n"
_UNREAD_BYTES: Final = 4096  # less than a reply: the rest stays in the daemon's kernel


def run(arguments: argparse.Namespace) -> Report:
    *worker_cores, client_core = sorted(os.sched_getaffinity(0))
    worker_cores = worker_cores or [client_core]
    with ExitStack() as stack:
        path = stack.enter_context(dataset_or_synthetic(arguments.dataset, images=arguments.images))
        stack.enter_context(pinned_to(client_core))
        start = partial(running_daemon, path, workers=len(worker_cores), cores=worker_cores)
        plain = stack.enter_context(start(options=UNCACHED))
        watched = stack.enter_context(start(options=[*UNCACHED, "--metrics", "127.0.0.1:0"]))
        address = _metrics_address(watched)
        scraping = stack.enter_context(_watcher("scrape", address, 1))
        asking = feeder_command("status", watched.ipc, "--watch", "--interval", "1", "--json")
        status = stack.enter_context(LineProcess(asking, log=subprocess.DEVNULL))
        for watcher in (scraping, status):
            watcher.next_line(_TIMEOUT_S)
        idle_percent = watched.idle_percent(arguments.idle, wait=partial(_read, status))
        holding = stack.enter_context(_watcher("idle", address, IDLE))
        hanging = stack.enter_context(_watcher("hang", address, 1))
        recipe = Recipe.for_split("train", batch_size=BATCH_SIZE)
        contenders: dict[str, Contender] = {}
        for name, daemon, watchers in (
            ("alone", plain, ()),
            ("watched", watched, (scraping, status)),
            ("idle-connections", watched, (holding, hanging)),
        ):
            fetcher = stack.enter_context(BatchFetcher(daemon.ipc, recipe=recipe))
            # The same batches in each round.
            contenders[f"eyes/{name}"] = beside(stack, fetcher.replay, watchers)
        taken = measure(contenders, rounds=arguments.rounds, items=arguments.batches)
        scrapes_s = _scrape_under_load(contenders["eyes/watched"], address)
    cuts = statistics.quantiles(scrapes_s, n=100, method="inclusive")
    results = [
        *compare(rates(taken, arguments.batches * BATCH_SIZE), RATE),
        single("eyes/scrape-p50", "ms", 1000 * cuts[49]),
        single("eyes/scrape-p99", "ms", 1000 * cuts[98]),
        single("eyes/idle-cpu", "% of a core", idle_percent),
    ]
    measured = {
        "rounds": arguments.rounds,
        "batches a turn": f"{arguments.batches} of {BATCH_SIZE} images",
        "workers": len(worker_cores),
        "client and watchers": f"on core {client_core}",
    }
    return Report(bench="eyes", machine=describe_machine(), results=results, measured=measured)


def _scrape_under_load(fetch: Contender, address: str) -> list[float]:
    """Return the seconds of each scrape while a client takes batches."""
    ended = threading.Event()

    def load() -> None:
        while not ended.is_set():
            fetch(0, 4)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        with _watcher("scrape", address, _SCRAPE_EVERY_S) as scraping:
            return [float(scraping.next_line(_TIMEOUT_S)) for _ in range(SCRAPES)]
    finally:
        ended.set()
        thread.join()


def _metrics_address(daemon: Daemon) -> str:
    line = daemon.find_line(_METRICS_LINE, _TIMEOUT_S)
    match = line and re.match(_METRICS_LINE, line)
    if not match:
        raise ResourceError("the daemon's log has no line with the address of its metrics")
    return match[1]


def _watcher(kind: str, address: str, number: float) -> LineProcess:
    command = python_command(f"{__package__}.eyes", os.getpid(), kind, address, str(number))
    return LineProcess(command)


def _read(watcher: LineProcess, seconds: float) -> None:
    """Read the lines of a watcher, which prints one a second: a full pipe would stop it."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        watcher.next_line(_TIMEOUT_S)


def scrape(address: tuple[str, int]) -> float:
    began_s = time.perf_counter()
    with socket.create_connection(address, _TIMEOUT_S) as client:
        client.sendall(_REQUEST)
        received = b"".join(iter(lambda: client.recv(1 << 16), b""))
    if not received.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(f"not metrics: {received[:80]!r}")
    return time.perf_counter() - began_s


def reopen(clients: list[socket.socket], address: tuple[str, int]) -> None:
    """Replace the connections that are not open, or that the server has closed."""
    for place, client in enumerate(clients):
        with contextlib.suppress(OSError):  # refused: the next call tries again
            try:
                is_closed = client.recv(1, socket.MSG_DONTWAIT) == b""
            except BlockingIOError:
                continue
            except OSError:
                is_closed = True
            if is_closed:
                client.close()
                clients[place] = socket.create_connection(address, _TIMEOUT_S)


def request_unread(address: tuple[str, int]) -> socket.socket:
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


def _watch(kind: str, address: tuple[str, int], number: float) -> NoReturn:
    clients = [socket.socket() for _ in range(int(number))]
    while True:
        match kind:
            case "scrape":
                taken_s = scrape(address)
                print(f"{taken_s:.6f}", flush=True)
                time.sleep(max(0.0, number - taken_s))
                continue
            case "idle":
                reopen(clients, address)
            case "hang":
                clients = [request_unread(address)]
        print("begun", flush=True)
        time.sleep(1.0)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    host, _, port = sys.argv[3].rpartition(":")
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        _watch(sys.argv[2], (host, int(port)), float(sys.argv[4]))
    os._exit(0)
