"""What the conditions of a verdict look at, computed once from a report."""

from dataclasses import dataclass
from typing import Final, Self

from feeder.diagnosis.client_interval import ClientInterval
from feeder.diagnosis.interval import HostInterval
from feeder.metrics.report import HostReport, Verdict, VerdictKind
from feeder.metrics.snapshot import OTHERS

WAITS_MEAN: Final = 0.02
"""Clients that wait for a smaller share of their time, on average, are not held back: as in
``EpochTimes.late``."""

WAITS_ONE: Final = 0.05
"""A single client that waits for a larger share is: in synchronous training all wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A report, and what happened in its interval."""

    report: HostReport
    interval: HostInterval

    @classmethod
    def of(cls, report: HostReport) -> Self:
        """Return the facts of a report."""
        return cls(report=report, interval=HostInterval.of(report))

    @property
    def clients(self) -> tuple[ClientInterval, ...]:
        """The clients that are shown one by one."""
        return tuple(client for client in self.interval.clients if client.name != OTHERS)

    @property
    def longest_wait(self) -> float:
        """The largest share of its time that a client waits; 0 where none has reported."""
        return max((client.wait_share or 0.0 for client in self.interval.clients), default=0.0)

    @property
    def do_clients_wait(self) -> bool:
        """Whether the daemon holds its clients back.

        Clients that report no waits count as waiting while the workers are always busy.
        """
        mean = self.interval.wait_share
        if mean is None:
            return self.interval.busy_share > 0.9
        return mean > WAITS_MEAN or self.longest_wait > WAITS_ONE

    @property
    def waits(self) -> str:
        """How long clients wait, as a clause."""
        share = self.interval.wait_share
        if share is None:
            return "clients report no waits"
        if self.interval.client_count == 1:
            return f"the client waits {percent(share)} of its time"
        return f"clients wait {percent(share)} of their time"

    @property
    def busy(self) -> str:
        """How busy the workers are, as a clause."""
        workers = self.interval.workers
        if workers == 1:
            return f"the worker is busy {percent(self.interval.busy_share)}"
        return f"{workers} workers are busy {percent(self.interval.busy_share)}"


def verdict(
    kind: VerdictKind, text: str, *, is_problem: bool = True, estimate: float = 0.0
) -> Verdict:
    """Return a verdict whose line begins with its kind."""
    return Verdict(
        kind=kind, text=f"{kind}: {text}", is_problem=is_problem, estimate_images_a_s=estimate
    )


def percent(share: float) -> str:
    """Return a share as text: 31 %, and 0.4 % where a whole number would be 0."""
    value = 100 * share
    return f"{value:.1f} %" if 0 < value < 0.95 else f"{value:.0f} %"


def megabytes_a_s(bytes_a_s: float) -> str:
    """Return a rate as text."""
    if bytes_a_s >= 1e9:
        return f"{bytes_a_s / 1e9:.1f} GB/s"
    return f"{bytes_a_s / 1e6:.0f} MB/s" if bytes_a_s >= 1e6 else f"{bytes_a_s / 1e6:.1f} MB/s"


def gigabytes(size_bytes: float) -> str:
    """Return a size as text."""
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"
