"""``feeder-bench stream --soak MINUTES``: does it stay as it was while clients come and go?

Clients stream as fast as they are served, alternately over ipc and tcp. Every few seconds one of
them ends, alternately cleanly and by SIGKILL, and another replaces it. Meanwhile the daemon's
processes, the throughput and the speed of the machine are sampled. The bench ends with status 1 and
the reason when a process's own memory or descriptors, or the slots of all sessions, have grown,
when throughput fell on a machine that did not become slower (``soak_judgement`` defines how much),
when slots remain after all clients have gone, and when a process was replaced.
"""

import argparse
import hashlib
import selectors
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, Self

import numpy as np
import psutil

from feeder.dataset.manifest import load_manifest
from feeder.errors import ConfigError, PeerError
from feeder.host.load import parse_cpu_seconds
from feeder.pack.progress import ProgressLine

from ..daemon import Daemon, running_daemon
from ..data.material import dataset_or_synthetic
from ..fetcher import TIMEOUT_S, ClientProcess, await_open, read_clients
from ..footprint import busy_s, measure_footprints
from ..machine import choose_cores, describe_machine, pinned_to
from ..report import JudgedReport, single
from .soak_judgement import SAMPLES_MIN, WARM_UP_SHARE, judge

_FOR_EVER: Final = 10**9  # batches: more than a client can fetch during any soak

_SLOTS: Final = "shared-memory/slots"

_PIECE_BYTES: Final = 128 * 1024
_RING_PIECES: Final = 256  # 32 MiB, more than a core's caches: copying needs the memory

_BURST_SHARE: Final = 0.02  # of the time between samples, on each core
_BURST_MAX_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakReport(JudgedReport):
    headline: str  # what became of the throughput, and what has grown, in a few words
    conclusions: Sequence[str]

    at_s: Sequence[float]  # when each sample was taken
    series: Mapping[str, Sequence[float]]
    """By name, such as "memory/node-1" in MiB: one value a sample."""
    restarts: Sequence[tuple[float, str]]  # when clients ended, and how: "clean" or "killed"

    def conclude(self) -> list[str]:
        verdict = "failed" if self.failures else "passed"
        return [f"feeder-bench soak {verdict}: {self.headline}", *self.conclusions]


def run(arguments: argparse.Namespace) -> SoakReport:
    """Soak for ``soak`` minutes; ConfigError when there would be too few samples to judge."""
    minutes, every_s, lease_s = arguments.soak, arguments.every, arguments.lease
    wanted_s = SAMPLES_MIN * every_s / (1 - WARM_UP_SHARE)
    if minutes * 60 < wanted_s + 2 * every_s:
        raise ConfigError(
            f"--soak {minutes:g} with a sample every {every_s:g} s is too short to tell growth "
            f"from noise: soak for {wanted_s / 60 + every_s / 30:.1f} minutes or more, or lower "
            "--every"
        )
    worker_core, client_core = choose_cores(arguments.core)
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        machine = describe_machine({"daemon": worker_core, "clients": client_core})
        batch_size = min(arguments.batch_size, load_manifest(path).samples)
        lease = ["--lease-s", str(lease_s)]
        cores = {"daemon-core": worker_core, "client-core": client_core}
        with running_daemon(path, workers=1, cores=[worker_core], options=lease) as daemon:
            before = {process.pid for process in daemon.processes()}
            try:
                with Soak(daemon, arguments, batch_size, cores) as soak:
                    soak.start()
                    soak.stream()
                left_mib = _await_slots(daemon, lease_s)
            except (OSError, psutil.Error) as error:
                raise PeerError(
                    f"a process of the daemon ended during the soak ({error}); the last log line: "
                    f"{daemon.last_log_line()}"
                ) from None
            replaced = before != {process.pid for process in daemon.processes()}
    results, failures, verdict = judge(soak.series, soak.at_s)
    ends = [how for _, how in soak.restarts]
    results += [
        single(f"{_SLOTS}/left", "MiB", left_mib),
        single("restarts/clean", "clients", ends.count("clean")),
        single("restarts/killed", "clients", ends.count("killed")),
    ]
    if left_mib:
        failures.append(
            f"slots: {left_mib:.1f} MiB were not given back within {2 * lease_s:g} s of the last "
            "client's end"
        )
    if replaced:
        failures.append(
            f"a process of the daemon was replaced; the last log line: {daemon.last_log_line()}"
        )
    growth = failures[0].partition(",")[0] if failures else "nothing has grown"
    if len(failures) > 1:
        growth += f" and {len(failures) - 1} more"
    unchanged = "nothing has grown: memory, descriptors and slots are as before"
    conclusions = [verdict.sentence, *(failures or [unchanged])]
    if verdict.kind == "fell":
        failures.insert(0, verdict.sentence)
    return SoakReport(
        bench="soak",
        machine=machine,
        measured={
            "minutes": minutes,
            "samples": len(soak.at_s),
            "clients": arguments.clients,
            "restarts": len(soak.restarts),
        },
        headline=f"{verdict.headline}; {growth}",
        conclusions=conclusions,
        results=results,
        at_s=soak.at_s,
        series=soak.series,
        restarts=soak.restarts,
        failures=failures,
    )


@dataclass(slots=True)
class Soak:
    """The clients of a daemon, and all samples so far; a context manager that ends the clients."""

    daemon: Daemon
    arguments: argparse.Namespace
    batch_size: int
    cores: Mapping[str, int]  # of "daemon-core" and "client-core"
    at_s: list[float] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)
    restarts: list[tuple[float, str]] = field(default_factory=list)
    images: int = 0
    clients: list[ClientProcess] = field(default_factory=list)
    seeds: Iterator[int] = field(default_factory=count)
    ended_cpu_s: float = 0.0  # of the clients before the present ones
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def start(self) -> None:
        for number in range(self.arguments.clients):
            self.clients.append(self._start(number))
        await_open(self.clients)
        while not self.images:  # raises if a client gives up, as it does after TIMEOUT_S
            self._read(time.monotonic() + TIMEOUT_S)

    def stream(self) -> None:
        """Stream, restart clients and take samples, until all samples are taken."""
        every_s, restart_s = self.arguments.every, self.arguments.restart
        reference = CoreReference(self.cores, every_s)
        reference.sample(self._cpu_s())
        began_s = sampled_s = time.monotonic()
        images = self.images
        next_sample_s, next_restart_s = began_s + every_s, began_s + restart_s
        wanted = int(self.arguments.soak * 60 / every_s)
        progress = ProgressLine(sys.stderr)
        progress.begin("soaking", "samples", wanted)
        while len(self.at_s) < wanted:
            self._read(min(next_sample_s, next_restart_s))
            now_s = time.monotonic()
            if now_s >= next_restart_s:
                self.restarts.append((round(now_s - began_s, 3), self._restart()))
                next_restart_s = now_s + restart_s
            if now_s >= next_sample_s:
                values = {"throughput": (self.images - images) / (now_s - sampled_s)}
                images, sampled_s = self.images, now_s
                speeds = reference.sample(self._cpu_s())
                values |= {f"reference/{part}": speed for part, speed in speeds.items()}
                values |= measure_footprints(self.daemon.processes())
                for name in values:  # 0 for the samples that lack it
                    self.series.setdefault(name, [0.0] * len(self.at_s))
                for name, column in self.series.items():
                    column.append(values.get(name, 0.0))
                self.at_s.append(round(now_s - began_s, 3))
                next_sample_s = now_s + every_s
                progress.add(1)
        progress.end()

    def _start(self, number: int) -> ClientProcess:
        client = ClientProcess(
            (self.daemon.ipc, self.daemon.tcp)[number % 2],
            batch_size=self.batch_size,
            core=self.cores["client-core"],
            seed=next(self.seeds),
        )
        client.fetch(0, _FOR_EVER)
        self.selector.register(client, selectors.EVENT_READ)
        return client

    def _restart(self) -> str:
        """End the client whose turn it is, start another, and return how it ended."""
        turn, number = len(self.restarts), len(self.restarts) % len(self.clients)
        old = self.clients[number]
        self.selector.unregister(old)
        # Alternately, but shifted by one after each cycle, so that every client ends in both ways.
        is_killed = (turn + turn // len(self.clients)) % 2
        self.ended_cpu_s += busy_s([old.pid])
        (old.kill if is_killed else old.terminate)()
        self.clients[number] = self._start(number)
        return "killed" if is_killed else "clean"

    def _read(self, until_s: float) -> None:
        """Count the batches that clients report, waiting for one until ``until_s``."""
        for _, words in read_clients(self.selector, until_s):
            if words[0] == "batch":
                self.images += int(words[2])

    def _cpu_s(self) -> dict[int, float]:
        """Return the CPU time that daemon and clients have used so far, by their cores."""
        clients_s = self.ended_cpu_s + busy_s(client.pid for client in self.clients)
        daemon, client = self.cores.values()
        used_s = {daemon: self.daemon.busy_s()}
        used_s[client] = used_s.get(client, 0.0) + clients_s
        return used_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.selector.close()
        for client in self.clients:
            client.terminate()


class CoreReference:
    """The reference of the throughput: what the same cores could do in the same seconds.

    Throughput depends on the machine, which others use too: a neighbour takes time of the core, or
    of the memory and caches that all cores share. So with every sample, each core of the soak
    copies and hashes bytes for a moment. The speed is measured in CPU time, which does not depend
    on what else runs on that core, and multiplied by the share of the core's time that programs
    outside the soak, and the hypervisor, have not used since the last sample (/proc/stat). So a
    busy daemon cannot lower the product. A core without a line in /proc/stat counts as unused.
    """

    def __init__(
        self, cores: Mapping[str, int], every_s: float, *, stat: Path = Path("/proc/stat")
    ) -> None:
        """``cores`` is given by the part of the soak that runs there."""
        self._cores = cores
        self._stat = stat
        self._burst_s = min(_BURST_MAX_S, _BURST_SHARE * every_s)
        self._ring = np.ones((_RING_PIECES, _PIECE_BYTES), np.uint8)
        self._copy = np.empty(_PIECE_BYTES, np.uint8)
        self._pieces = 0
        self._burst_cpu_s = dict.fromkeys(cores.values(), 0.0)
        self._before: tuple[float, dict[int, float]] | None = None

    def sample(self, own_s: Mapping[int, float]) -> dict[str, float]:
        """Return MB/s of each part's core since the last call; the first call returns its speed.

        ``own_s`` is what all processes of the soak have used so far, by core.
        """
        now_s, stat = time.monotonic(), self._stat.read_bytes()
        others_s = {
            core: parse_cpu_seconds(stat, {core})[0] - own_s[core] - burst_s
            for core, burst_s in self._burst_cpu_s.items()
        }
        before_s, before = self._before or (now_s - 1, others_s)
        self._before = now_s, others_s
        left = {
            core: 1 - min(max((used_s - before[core]) / (now_s - before_s), 0.0), 0.99)
            for core, used_s in others_s.items()
        }
        speeds = {core: self._run_burst(core) * left[core] for core in left}
        return {part: speeds[core] for part, core in self._cores.items()}

    def _run_burst(self, core: int) -> float:
        """Process the load for a moment on ``core``; return MB per second of CPU time."""
        before = self._pieces
        with pinned_to(core):
            began_s, until_s = time.thread_time(), time.monotonic() + self._burst_s
            while self._pieces == before or time.monotonic() < until_s:
                np.copyto(self._copy, self._ring[self._pieces % _RING_PIECES])
                hashlib.blake2b(self._copy.data).digest()
                self._pieces += 1
            taken_s = time.thread_time() - began_s
        self._burst_cpu_s[core] += taken_s
        return (self._pieces - before) * _PIECE_BYTES / 1e6 / max(taken_s, 1e-6)


def _await_slots(daemon: Daemon, lease_s: float) -> float:
    """Wait for leases of killed clients to expire; return the MiB of slots still held."""
    until_s = time.monotonic() + 2 * lease_s
    while True:
        held_mib = measure_footprints(daemon.processes())[_SLOTS]
        if not held_mib or time.monotonic() > until_s:
            return held_mib
        time.sleep(0.05)  # another process's freeing of memory is not signalled
