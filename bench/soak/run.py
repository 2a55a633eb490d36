"""``feeder-bench soak``: streams for hours while clients come and go; does it stay as it was?

Clients stream as fast as they are served, alternately over ipc and tcp. Every few seconds one of
them ends, alternately cleanly and by SIGKILL, and another replaces it. Meanwhile the daemon's
processes, the throughput and the speed of the machine are sampled. The bench ends with status 1 and
the reason when a process's own memory or descriptors, or the slots of all sessions, have grown
(``growth`` defines how much), when throughput fell on a machine that did not become slower
(``throughput``), when slots remain after all clients have gone, and when a process was replaced.
"""

import argparse
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, PeerError
from feeder.pack.progress import ProgressLine

from ..daemon import Daemon, running_daemon
from ..data.material import dataset_or_synthetic
from ..footprint import Footprint
from ..machine import choose_core, choose_other_core, describe_machine
from ..report import RATE, JudgedReport, Result, single, summarise
from .clients import SoakClients
from .cpu_use import CpuUse
from .growth import Tolerance, find_trend
from .reference import CoreReference
from .throughput import Verdict, judge_throughput
from .windows import SAMPLES_MIN, WARM_UP_SHARE

_COLUMNS: Final = 79
_MIB: Final = 2**20
_TOLERANCES: Final = {
    "memory": Tolerance(absolute=4.0, relative=0.05),  # MiB: allocators keep more or less of it
    "fds": Tolerance(absolute=2.0, relative=0.0),  # a session's memory and its connection
    "shared-memory/slots": Tolerance(
        absolute=1.0, relative=0.25
    ),  # a killed client's slots and lease
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """How long, how often, and where."""

    minutes: float
    every_s: float
    """Between two samples."""
    restart_s: float
    """Between two restarts of clients."""
    lease_s: float
    clients: int
    batch_size: int
    worker_core: int
    client_core: int

    def __post_init__(self) -> None:
        """Raise ConfigError when there would be too few samples to judge."""
        wanted_s = SAMPLES_MIN * self.every_s / (1 - WARM_UP_SHARE)
        if self.minutes * 60 < wanted_s + 2 * self.every_s:
            raise ConfigError(
                f"--minutes {self.minutes:g} with a sample every {self.every_s:g} s is too short "
                f"to tell growth from noise: soak for {wanted_s / 60 + self.every_s / 30:.1f} "
                "minutes or more, or lower --every"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakReport(JudgedReport):
    """A report with all samples."""

    headline: str
    """What became of the throughput, and what has grown, in a few words."""
    conclusions: Sequence[str]
    """The same with their evidence, a sentence each."""

    at_s: Sequence[float]
    """When each sample was taken."""
    series: Mapping[str, Sequence[float]]
    """By name, such as "memory/node-1" in MiB: one value a sample."""
    restarts: Sequence[tuple[float, str]]
    """When clients ended, and how: "clean" or "killed"."""

    def to_text(self) -> str:
        """Return the conclusion, header and table as text, with a newline at its end."""
        head, _, rest = JudgedReport.to_text(self).partition("\n")
        verdict = "failed" if self.failures else "passed"
        sentences = (f"{head} {verdict}: {self.headline}", *self.conclusions)
        lines = [line for each in sentences for line in textwrap.wrap(each, _COLUMNS)]
        return "\n".join([*lines, "", rest])


@dataclass(slots=True)
class _Record:
    """All samples so far."""

    at_s: list[float] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)
    restarts: list[tuple[float, str]] = field(default_factory=list)

    def add(self, at_s: float, values: Mapping[str, float]) -> None:
        """Add a sample; a series has 0 for the samples that lack its name."""
        for name in values:
            self.series.setdefault(name, [0.0] * len(self.at_s))
        self.at_s.append(at_s)
        for name, column in self.series.items():
            column.append(values.get(name, 0.0))


def soak(path: Path, options: SoakOptions) -> SoakReport:
    """Soak with the dataset at ``path``; problems are in the report's ``failures``."""
    machine = describe_machine({"daemon": options.worker_core, "clients": options.client_core})
    with Dataset.open(path) as dataset:
        samples = dataset.layout.samples
    with running_daemon(
        path,
        workers=1,
        cores=frozenset({options.worker_core}),
        options=["--lease-s", str(options.lease_s)],
    ) as daemon:
        before = {process.pid for process in daemon.processes()}
        record = _Record()
        with ExitStack() as stack:
            clients = SoakClients(
                (daemon.ipc, daemon.tcp),
                clients=options.clients,
                batch_size=min(options.batch_size, samples),
                core=options.client_core,
            )
            stack.callback(clients.close)
            _stream(daemon, clients, options, record)
        held_bytes = _await_slots(daemon, options.lease_s)
        replaced = before != {process.pid for process in daemon.processes()}
    results, failures, verdict = judge(record.series, record.at_s)
    results.append(single("shared-memory/slots/left", "MiB", held_bytes / _MIB))
    for how in ("clean", "killed"):
        count = sum(each == how for _, each in record.restarts)
        results.append(single(f"restarts/{how}", "clients", count))
    if held_bytes:
        failures.append(
            f"slots: {held_bytes / _MIB:.1f} MiB were not given back within "
            f"{2 * options.lease_s:g} s of the last client's end"
        )
    if replaced:
        failures.append(
            f"a process of the daemon was replaced; the last log line: {daemon.last_log_line()}"
        )
    conclusions = [verdict.sentence]
    conclusions += failures or ["nothing has grown: memory, descriptors and slots are as before"]
    growth = failures[0].partition(",")[0] if failures else "nothing has grown"
    if len(failures) > 1:
        growth += f" and {len(failures) - 1} more"
    headline = f"{verdict.headline}; {growth}"
    if verdict.kind == "fell":
        failures.insert(0, verdict.sentence)
    return SoakReport(
        bench="soak",
        machine=machine,
        measured={
            "minutes": options.minutes,
            "samples": len(record.at_s),
            "clients": options.clients,
            "restarts": len(record.restarts),
        },
        headline=headline,
        conclusions=conclusions,
        results=results,
        at_s=record.at_s,
        series=record.series,
        restarts=record.restarts,
        failures=failures,
    )


def judge(
    series: Mapping[str, Sequence[float]], at_s: Sequence[float]
) -> tuple[list[Result], list[str], Verdict]:
    """Return the rows of all series, a line for each that has grown, and the throughput's verdict.

    ``at_s`` is when the samples were taken. The lines do not include that throughput fell.
    """
    rows: list[Result] = []
    failures: list[str] = []
    for name, values in series.items():
        kind, _, _ = name.partition("/")
        unit = {"fds": "fds", "throughput": RATE, "reference": "MB/s"}.get(kind, "MiB")
        rows.append(summarise(name, unit, values[int(len(values) * WARM_UP_SHARE) :]))
        tolerance = _TOLERANCES.get(name, _TOLERANCES.get(kind))
        if tolerance is None:
            continue
        trend = find_trend(values)
        rows.append(single(f"{name}/growth", unit, trend.growth))
        if trend.exceeds(tolerance):
            failures.append(
                f"{name} grew by {trend.growth:.1f} {unit}, from {trend.first:.1f} to "
                f"{trend.last:.1f} (medians of the first and the last third after the warm-up; "
                f"at most {tolerance.allowed(trend.first):.1f} is allowed)"
            )
    references = {name: values for name, values in series.items() if name.startswith("reference/")}
    verdict = judge_throughput(series["throughput"], references, at_s)
    rows.append(single("throughput/change", "%", 100 * verdict.change))
    rows.append(single("reference/change", "%", 100 * verdict.machine_change))
    return rows, failures, verdict


def _stream(daemon: Daemon, clients: SoakClients, options: SoakOptions, record: _Record) -> None:
    """Stream, restart clients and take samples, until all samples are taken."""
    reference = CoreReference(
        {"daemon-core": options.worker_core, "client-core": options.client_core},
        every_s=options.every_s,
    )
    clients.start()
    reference.sample(_cpu_use(daemon, clients, options))
    began_s = time.monotonic()
    images, sampled_s = clients.images, began_s
    next_sample_s, next_restart_s = began_s + options.every_s, began_s + options.restart_s
    wanted = int(options.minutes * 60 / options.every_s)
    progress = ProgressLine(sys.stderr)
    progress.begin("soaking", "samples", wanted)
    while len(record.at_s) < wanted:
        clients.read(min(next_sample_s, next_restart_s))
        now_s = time.monotonic()
        if now_s >= next_restart_s:
            how = clients.restart(len(record.restarts))
            record.restarts.append((round(now_s - began_s, 3), how))
            next_restart_s = now_s + options.restart_s
        if now_s >= next_sample_s:
            rate = (clients.images - images) / (now_s - sampled_s)
            images, sampled_s = clients.images, now_s
            speeds = reference.sample(_cpu_use(daemon, clients, options))
            values = {"throughput": rate}
            values |= {f"reference/{part}": speed for part, speed in speeds.items()}
            values |= _values(_look_at(daemon))
            record.add(round(now_s - began_s, 3), values)
            next_sample_s = now_s + options.every_s
            progress.add(1)
    progress.end()


def _cpu_use(daemon: Daemon, clients: SoakClients, options: SoakOptions) -> Mapping[int, CpuUse]:
    """Return what daemon and clients have used so far, by their cores."""
    with _reporting_losses(daemon):
        own = CpuUse.of_processes(process.pid for process in daemon.processes())
    if options.client_core == options.worker_core:
        return {options.worker_core: own + clients.cpu_use()}
    return {options.worker_core: own, options.client_core: clients.cpu_use()}


def _look_at(daemon: Daemon) -> Footprint:
    """Return its footprint."""
    with _reporting_losses(daemon):
        return Footprint.of_processes(daemon.processes())


@contextmanager
def _reporting_losses(daemon: Daemon) -> Iterator[None]:
    """Raise PeerError with the daemon's last log line when it has lost a process in the body."""
    try:
        yield
    except (OSError, psutil.Error) as error:
        raise PeerError(
            f"a process of the daemon ended during the soak ({error}); the last log line: "
            f"{daemon.last_log_line()}"
        ) from None


def _values(footprint: Footprint) -> dict[str, float]:
    values: dict[str, float] = {
        f"shared-memory/{purpose}": size_bytes / _MIB
        for purpose, size_bytes in footprint.shared_bytes.items()
    }
    for role, each in footprint.processes.items():
        values[f"memory/{role}"] = each.own_bytes / _MIB
        values[f"pss/{role}"] = each.pss_bytes / _MIB
        values[f"rss/{role}"] = each.rss_bytes / _MIB
        values[f"fds/{role}"] = each.fds
    return values


def _await_slots(daemon: Daemon, lease_s: float) -> int:
    """Wait for leases of killed clients to expire; return the bytes of slots still held."""
    until_s = time.monotonic() + 2 * lease_s
    while True:
        held = _look_at(daemon).shared_bytes["slots"]
        if not held or time.monotonic() > until_s:
            return held
        time.sleep(0.05)  # another process's freeing of memory is not signalled


def run(arguments: argparse.Namespace) -> SoakReport:
    """Do what the command line asks."""
    worker_core = choose_core(arguments.core)
    options = SoakOptions(
        minutes=arguments.minutes,
        every_s=arguments.every,
        restart_s=arguments.restart,
        lease_s=arguments.lease,
        clients=arguments.clients,
        batch_size=arguments.batch_size,
        worker_core=worker_core,
        client_core=choose_other_core(worker_core),
    )
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        return soak(path, options)
