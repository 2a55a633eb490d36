"""``feeder-bench eyes``: what it costs to be watched.

A daemon without metrics and one with them take turns with the same batches, in random order. In the
turns of a *watched* daemon, processes on the client's core watch it; between them they are stopped.

    eyes/watched            a scrape and ``feeder status --watch`` every second, against unwatched
    eyes/idle-connections   IDLE connections to the port, and a scrape a second that is never read
    eyes/scrape-p50, -p99   SCRAPES scrapes while a client takes batches
    eyes/idle-cpu           CPU of all its processes without trainers; a scrape, a status a second
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from feeder.errors import ResourceError
from feeder.plan.recipe import Recipe
from feeder.process.child import python_command

from ..daemon import Daemon, feeder_command, running_daemon
from ..data.material import dataset_or_synthetic
from ..fetcher import BatchFetcher
from ..line_process import LineProcess
from ..machine import describe_machine, pinned_to
from ..report import RATE, Report, compare, single
from ..rounds import Contender, measure, rates

BATCH_SIZE: Final = 128
IDLE: Final = 1000
SCRAPES: Final = 100
_SCRAPE_EVERY_S: Final = 0.1
_TIMEOUT_S: Final = 60.0
_METRICS_LINE: Final = r"^feeder: metrics: http://(.*)/metrics"


def run(arguments: argparse.Namespace) -> Report:
    """Measure with two daemons; PeerError when one stops replying."""
    *worker_cores, client_core = sorted(os.sched_getaffinity(0))
    worker_cores = worker_cores or [client_core]
    usual = ["--decoded-bytes", "0", "--lease-s", "3600"]
    with ExitStack() as stack:
        path = stack.enter_context(dataset_or_synthetic(arguments.dataset, images=arguments.images))
        stack.enter_context(pinned_to(client_core))
        start = partial(running_daemon, path, workers=len(worker_cores), cores=worker_cores)
        plain = stack.enter_context(start(options=usual))
        watched = stack.enter_context(start(options=[*usual, "--metrics", "127.0.0.1:0"]))
        address = _metrics_address(watched)
        scraping = stack.enter_context(_watcher("scrape", address, "1", "0"))
        asking = feeder_command("status", watched.ipc, "--watch", "--interval", "1", "--json")
        status = stack.enter_context(LineProcess(asking, log=subprocess.DEVNULL))
        for watcher in (scraping, status):
            watcher.next_line(_TIMEOUT_S)
        idle_percent = watched.idle_percent(arguments.idle, wait=partial(_read, status))
        holding = stack.enter_context(_watcher("idle", address, str(IDLE)))
        hanging = stack.enter_context(_watcher("hang", address))
        recipe = Recipe.for_split("train", batch_size=BATCH_SIZE)
        fetchers = [
            stack.enter_context(BatchFetcher(daemon.ipc, recipe=recipe))
            for daemon in (plain, watched, watched)
        ]
        for watcher in (scraping, status, holding, hanging):
            watcher.next_line(_TIMEOUT_S)
            os.kill(watcher.pid, signal.SIGSTOP)
            stack.callback(os.kill, watcher.pid, signal.SIGCONT)  # so that it can end
        contenders: dict[str, Contender] = {
            "eyes/alone": partial(_fetch, fetchers[0], ()),
            "eyes/watched": partial(_fetch, fetchers[1], (scraping, status)),
            "eyes/idle-connections": partial(_fetch, fetchers[2], (holding, hanging)),
        }
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


def _fetch(fetcher: BatchFetcher, watchers: Sequence[LineProcess], first: int, end: int) -> None:
    """Fetch batches, the same in each round, while the watchers run."""
    for watcher in watchers:
        os.kill(watcher.pid, signal.SIGCONT)
    fetcher.replay(first, end)
    for watcher in watchers:
        os.kill(watcher.pid, signal.SIGSTOP)
        watcher.read_lines()


def _scrape_under_load(fetch: Contender, address: str) -> list[float]:
    """Return the seconds of each scrape while a client takes batches."""
    ended = threading.Event()

    def load() -> None:
        while not ended.is_set():
            fetch(0, 4)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        with _watcher("scrape", address, str(_SCRAPE_EVERY_S), str(SCRAPES)) as scraping:
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


def _watcher(*arguments: str) -> LineProcess:
    return LineProcess(python_command(f"{__package__}.scraper", os.getpid(), *arguments))


def _read(watcher: LineProcess, seconds: float) -> None:
    """Read the lines of a watcher, which prints one a second: a full pipe would stop it."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        watcher.next_line(_TIMEOUT_S)
