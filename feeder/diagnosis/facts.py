"""What the conditions of a verdict look at, computed once from a report."""

from dataclasses import dataclass
from typing import Final, Self

from feeder.diagnosis.client_interval import ClientInterval
from feeder.diagnosis.interval import HostInterval
from feeder.metrics.figures import percent
from feeder.metrics.records import OTHERS, ClientRecord
from feeder.metrics.report import HostReport, Verdict, VerdictKind

WAITS_MEAN: Final = 0.02
"""Clients that wait for a smaller share of their time, on average, are not held back: as in
``EpochTimes.late``."""

WAITS_ONE: Final = 0.05
"""A single client that waits for a larger share is: in synchronous training all wait for it."""


STAYS: Final = 0.75
"""A condition that was met stays so until its figure falls below this part of the threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A report, and what happened in its interval."""

    report: HostReport
    interval: HostInterval
    longer: HostInterval
    """A longer one with the same end."""
    held: Verdict | None
    """The verdict until now."""

    @classmethod
    def of(cls, report: HostReport, longer: HostReport, held: Verdict | None) -> Self:
        """Return the facts of a report, and of one with earlier snapshots to compare with."""
        interval = HostInterval.of(report)
        return cls(
            report=report,
            interval=interval,
            longer=interval if longer is report else HostInterval.of(longer),
            held=held,
        )

    def reaches(self, kind: VerdictKind, figure: float, threshold: float) -> bool:
        """Whether a figure is at its threshold for ``kind``, or not far below it while that is the
        verdict."""
        is_held = self.held is not None and self.held.kind == kind
        return figure >= threshold * (STAYS if is_held else 1.0)

    @property
    def clients(self) -> tuple[ClientInterval, ...]:
        """The clients that are shown one by one."""
        return tuple(client for client in self.interval.clients if client.name != OTHERS)

    @property
    def do_clients_wait(self) -> bool:
        """Whether the daemon holds its clients back.

        They must have waited for a noticeable part of the longer interval, and still wait. Clients
        that report no waits count as waiting while the workers are always busy.
        """
        if self.interval.wait_share is None:
            return self.interval.busy_share > 0.9
        is_known = self.held is not None and self.held.is_problem
        return _do_wait(self.longer, 1.0) and _do_wait(self.interval, 0.5 if is_known else 1.0)

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


def _do_wait(interval: HostInterval, part: float) -> bool:
    """Whether clients wait for more than a part of the thresholds."""
    longest = max((client.wait_share or 0.0 for client in interval.clients), default=0.0)
    return (interval.wait_share or 0.0) > part * WAITS_MEAN or longest > part * WAITS_ONE


def verdict(
    kind: VerdictKind, text: str, *, is_problem: bool = True, estimate: float = 0.0
) -> Verdict:
    """Return a verdict whose line begins with its kind."""
    return Verdict(
        kind=kind, text=f"{kind}: {text}", is_problem=is_problem, estimate_images_a_s=estimate
    )


def name_client(client: ClientRecord | ClientInterval) -> str:
    """Return a client's name, which has its host, process and rank, with its job."""
    return f"{client.name} of job {client.job}" if client.job else client.name
