"""A daemon with one worker, and streams from it: to a client here, or to several processes.

``serving_one_core`` runs the daemon on one core and this process on another; ``beside`` has other
processes run in a contender's turns. ``fetch_here`` and ``fetch_by`` fetch batches and return what
arrived and what it cost, ``stream_rows`` the rows.
"""

import argparse
import selectors
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from feeder.dataset.manifest import load_manifest
from feeder.errors import PeerError

from ..daemon import Daemon, running_daemon
from ..data.material import dataset_or_synthetic
from ..fetcher import TIMEOUT_S, BatchFetcher, ClientProcess, read_clients
from ..line_process import LineProcess
from ..machine import choose_cores, describe_machine, pinned_to
from ..report import RATE, Result, compare, single, summarise
from ..rounds import Contender

UNCACHED: Final = ("--decoded-bytes", "0", "--lease-s", "3600")
"""The daemon's overhead shows only where it decodes; clients send nothing while they wait for their
turn, so their leases are long."""


def doublings(most: int) -> list[int]:
    """Return 1, 2, 4, 8 … and ``most``."""
    return sorted({2**power for power in range(most.bit_length())} | {most})


@contextmanager
def serving_one_core(
    arguments: argparse.Namespace, *options: str
) -> Iterator[tuple[Daemon, dict[str, object]]]:
    """Yield a daemon with one worker and these options, and the report's machine."""
    worker_core, client_core = choose_cores(arguments.core)
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        load_manifest(path)  # DatasetError, before a daemon is started
        machine = describe_machine({"worker": worker_core, "client": client_core})
        with (
            pinned_to(client_core),
            running_daemon(path, workers=1, cores=[worker_core], options=options) as daemon,
        ):
            yield daemon, machine


def beside(stack: ExitStack, contender: Contender, others: Sequence[LineProcess]) -> Contender:
    """Return ``contender`` as it does its work while ``others`` run.

    They have to print a line first, and are stopped between its turns until ``stack`` ends.
    """
    for other in others:
        other.next_line(TIMEOUT_S)
        other.send_signal(signal.SIGSTOP)
        stack.callback(other.send_signal, signal.SIGCONT)  # so that it can end

    def turn(first: int, end: int) -> None:
        for other in others:
            other.send_signal(signal.SIGCONT)
        contender(first, end)
        for other in others:
            other.send_signal(signal.SIGSTOP)
            other.read_lines()

    return turn


@dataclass(slots=True)
class Delivered:
    """What arrived in one round, and the cost of it."""

    images: int = 0
    gaps_s: list[float] = field(default_factory=list)  # between whole batches, at each client
    client_cpu_s: float = 0.0
    daemon_cpu_s: float = 0.0
    taken_s: float = 0.0


def fetch_here(fetcher: BatchFetcher, first: int, batches: int) -> Delivered:
    """Fetch ``batches`` batches from ``first`` on, counted through the epochs, in this process."""
    began_cpu_s = time.process_time()
    delivered, arrived_s = Delivered(), []
    for batch in fetcher.fetch(first, batches):
        arrived_s.append(time.monotonic())
        delivered.images += batch.valid
    delivered.gaps_s = np.diff(arrived_s).tolist()
    delivered.client_cpu_s = time.process_time() - began_cpu_s
    return delivered


def fetch_by(clients: Sequence[ClientProcess], first: int, batches: int) -> Delivered:
    """The same by several processes, which share the batches, rounded up."""
    share = -(-batches // len(clients))
    delivered = Delivered()
    last_s = dict.fromkeys(clients, 0.0)
    with selectors.DefaultSelector() as selector:
        for number, client in enumerate(clients):
            selector.register(client, selectors.EVENT_READ)
            client.fetch(first + number * share, share)
        while selector.get_map():
            received = list(read_clients(selector, time.monotonic() + TIMEOUT_S))
            if not received:
                raise PeerError(f"no client has got a batch within {TIMEOUT_S:g} s")
            for client, words in received:
                match words:
                    case ["batch", at_s, images]:
                        delivered.images += int(images)
                        if last_s[client]:
                            delivered.gaps_s.append(float(at_s) - last_s[client])
                        last_s[client] = float(at_s)
                    case ["done", cpu_s]:
                        delivered.client_cpu_s += float(cpu_s)
                        selector.unregister(client)
    return delivered


def stream_rows(
    local_rates: Sequence[float], delivered: Mapping[str, Sequence[Delivered]], image_bytes: int
) -> list[Result]:
    """Return the rows of the batches made here, and of each stream, given all rounds of it."""
    values = {"sample/whole": local_rates} | {
        f"stream/{name}": [each.images / each.taken_s for each in rounds]
        for name, rounds in delivered.items()
    }
    rows = compare(values, RATE)
    for way, rounds in delivered.items():
        name = f"stream/{way}"
        gigabytes = [rate * image_bytes / 1e9 for rate in values[name]]
        rows.append(summarise(f"{name}-bytes", "GB/s", gigabytes))
        gaps_s = [gap_s for each in rounds for gap_s in each.gaps_s]
        for percent in (50, 99) if gaps_s else ():
            gap_ms = 1e3 * float(np.percentile(gaps_s, percent))
            rows.append(single(f"{name}-gap-p{percent}", "ms", gap_ms))
        for side in ("daemon", "client"):
            cpu_us = [1e6 * getattr(each, f"{side}_cpu_s") / each.images for each in rounds]
            rows.append(summarise(f"{name}-{side}-cpu", "µs/image", cpu_us))
    return rows
