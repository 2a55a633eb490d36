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
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from feeder.errors import ResourceError
from feeder.pack.progress import ProgressLine
from feeder.plan.recipe import Recipe
from feeder.process.child import python_command

from ..daemon import DATASET_NAME, Daemon, feeder_command, running_daemon
from ..data.material import dataset_or_synthetic
from ..fetcher import BatchFetcher
from ..line_process import LineProcess
from ..machine import describe_machine, pinned_to
from ..report import RATE, Report, single, summarise
from ..rounds import Contender, run_rounds, warm_up

BATCH_SIZE: Final = 128
IDLE: Final = 1000
SCRAPES: Final = 100
_SCRAPE_EVERY_S: Final = 0.1
_WINDOW: Final = 4
_TIMEOUT_S: Final = 60.0
_METRICS_LINE: Final = r"^feeder: metrics: http://(.*)/metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class EyesOptions:
    """How long to measure, and where."""

    rounds: int
    batches: int
    """In a round, of each contender."""
    idle_s: float
    cores: frozenset[int]
    """The last one is the client's and its watchers', unless there is only one."""


class _Turns:
    """A client of a daemon, with processes that run in its turns only."""

    def __init__(self, daemon: Daemon, watchers: Sequence[LineProcess] = ()) -> None:
        self._watchers = watchers
        self.fetcher = BatchFetcher(
            daemon.ipc,
            dataset=DATASET_NAME,
            recipe=Recipe.for_split("train", batch_size=BATCH_SIZE),
            window=_WINDOW,
            timeout_s=_TIMEOUT_S,
            client="feeder-bench eyes",
        )

    def fetch(self, first: int, end: int) -> None:
        """Fetch batches, the same in each round."""
        for watcher in self._watchers:
            os.kill(watcher.pid, signal.SIGCONT)
        for _ in self.fetcher.fetch_run(first, end - first):
            pass
        for watcher in self._watchers:
            os.kill(watcher.pid, signal.SIGSTOP)
            watcher.read_lines()


def measure_eyes(path: Path, options: EyesOptions) -> Report:
    """Return the rows; PeerError when a daemon stops replying."""
    cores = sorted(options.cores)
    client_cores = frozenset(cores[-1:])
    worker_cores = frozenset(cores[:-1]) or client_cores
    usual = ["--decoded-bytes", "0", "--lease-s", "3600"]
    with ExitStack() as stack, pinned_to(client_cores):

        def start(*more: str) -> Daemon:
            daemon = running_daemon(
                path, workers=len(worker_cores), cores=worker_cores, options=[*usual, *more]
            )
            return stack.enter_context(daemon)

        plain, watched = start(), start("--metrics", "127.0.0.1:0")
        address = _metrics_address(watched)
        scraping = stack.enter_context(_watcher("scrape", address, "1", "0"))
        status = stack.enter_context(_status_watcher(watched))
        for watcher in (scraping, status):
            watcher.next_line(_TIMEOUT_S)
        idle_percent = watched.idle_percent(options.idle_s, wait=partial(_read, status))
        holding = stack.enter_context(_watcher("idle", address, str(IDLE)))
        hanging = stack.enter_context(_watcher("hang", address))
        turns = {
            "alone": _Turns(plain),
            "watched": _Turns(watched, [scraping, status]),
            "idle-connections": _Turns(watched, [holding, hanging]),
        }
        for each in turns.values():
            stack.callback(each.fetcher.close)
        for watcher in (scraping, status, holding, hanging):
            watcher.next_line(_TIMEOUT_S)
            os.kill(watcher.pid, signal.SIGSTOP)
            stack.callback(os.kill, watcher.pid, signal.SIGCONT)  # so that it can end
        rates = _run({name: each.fetch for name, each in turns.items()}, options)
        scrapes_s = _scrape_under_load(turns["watched"], address)
    alone = summarise("eyes/alone", RATE, rates["alone"])
    rows = [
        summarise(f"eyes/{name}", RATE, rates[name], baseline=alone, baseline_values=rates["alone"])
        for name in ("watched", "idle-connections")
    ]
    cuts = statistics.quantiles(scrapes_s, n=100, method="inclusive")
    rows += [
        single("eyes/scrape-p50", "ms", 1000 * cuts[49]),
        single("eyes/scrape-p99", "ms", 1000 * cuts[98]),
        single("eyes/idle-cpu", "% of a core", idle_percent),
    ]
    measured = {
        "rounds": options.rounds,
        "batches a turn": f"{options.batches} of {BATCH_SIZE} images",
        "workers": len(worker_cores),
        "client and watchers": f"on core {cores[-1]}",
    }
    return Report(
        bench="eyes", machine=describe_machine(), results=[alone, *rows], measured=measured
    )


def _run(contenders: dict[str, Contender], options: EyesOptions) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    progress = ProgressLine(sys.stderr)
    progress.begin("watched", "rounds", options.rounds)
    warm_up(contenders, items=options.batches, piece=options.batches)
    for seconds in run_rounds(
        contenders, items=options.batches, piece=options.batches, rounds=options.rounds
    ):
        for name, taken_s in seconds.items():
            rates[name].append(options.batches * BATCH_SIZE / taken_s)
        progress.add(1)
    progress.end()
    return rates


def _scrape_under_load(turns: _Turns, address: str) -> list[float]:
    """Return the seconds of each scrape while a client takes batches."""
    ended = threading.Event()

    def load() -> None:
        while not ended.is_set():
            turns.fetch(0, _WINDOW)

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


@contextmanager
def _status_watcher(daemon: Daemon) -> Iterator[LineProcess]:
    command = feeder_command("status", daemon.ipc, "--watch", "--interval", "1", "--json")
    with LineProcess(command, log=subprocess.DEVNULL) as process:
        yield process


def run(arguments: argparse.Namespace) -> Report:
    """Do what the command line asks."""
    options = EyesOptions(
        rounds=arguments.rounds,
        batches=arguments.batches,
        idle_s=arguments.idle,
        cores=frozenset(os.sched_getaffinity(0)),
    )
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        return measure_eyes(path, options)
