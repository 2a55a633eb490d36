"""What the conditions of a verdict look at, and what a change would give.

Estimates are images a second, from what the parts of the pipeline cost now. Each assumes that the
cost of an image stays what it is, so that the rate grows until something else runs out. The CPUs of
this host that the daemon and its local clients use grow with the rate; what other processes use
does not. Texts round an estimate to two digits.

There is none from a small sample, nor one far from the present rate, where caches, clock rates and
what does not grow with the rate matter more than what was measured; nor while other processes
compete for the CPUs, unless it is about these.
"""

from collections.abc import Collection
from math import inf
from typing import Final

from feeder.diagnosis.interval import ClientInterval, HostInterval
from feeder.metrics.figures import percent
from feeder.metrics.records import ClientRecord
from feeder.metrics.report import HostReport, Verdict

WAITS_MEAN: Final = 0.02
"""Clients that wait for a smaller share of their time, on average, are not held back: as in
``EpochTimes.late``."""

WAITS_ONE: Final = 0.05
"""A single client that waits for a larger share is: in synchronous training all wait for it."""

# The smallest sample that carries an estimate, and the estimate furthest from the present rate.
IMAGES_MIN: Final = 100
WORKER_SECONDS_MIN: Final = 1.0
FURTHEST: Final = 2.5
# Shares of the CPUs that other processes use, and of the time in which some process of the machine
# waited for a CPU, perhaps one that the daemon may not use: another core might not be free.
NEIGHBOURS_MAX: Final = 0.15
PRESSURE_MAX: Final = 0.5

Finding = str | tuple[str, float] | None
"""Of a condition that holds: the evidence and the next step, and an estimate where there is one."""


class Facts(HostInterval):
    """What happened in the interval of a report, and in a longer one with the same end."""

    def __init__(
        self, report: HostReport, longer: HostReport | None = None, held: Verdict | None = None
    ) -> None:
        """``held`` is the verdict until now."""
        super().__init__(report)
        self.longer = self if longer is None else Facts(longer)
        # Whether the daemon holds its clients back. They must have waited for a noticeable part of
        # the longer interval, and still wait. Clients that report no waits count as waiting while
        # the workers are always busy.
        part = 0.5 if held is not None and held.is_problem else 1.0
        self.do_clients_wait = self.longer._do_wait(1.0) and self._do_wait(part)
        # How long clients wait and how busy the workers are, as clauses.
        share = self.wait_share
        if share is None:
            self.do_clients_wait = self.busy_share > 0.9
            self.waits = "clients report no waits"
        elif self.client_count == 1:
            self.waits = f"the client waits {percent(share)} of its time"
        else:
            self.waits = f"clients wait {percent(share)} of their time"
        are = "the worker is" if self.workers == 1 else f"{self.workers} workers are"
        self.busy = f"{are} busy {percent(self.busy_share)}"

    def _do_wait(self, part: float) -> bool:
        """Whether clients wait for more than a part of the thresholds."""
        longest = max((client.wait_share or 0.0 for client in self.node_clients), default=0.0)
        return (self.wait_share or 0.0) > part * WAITS_MEAN or longest > part * WAITS_ONE

    def checked(self, could: float, *, has_neighbours: bool = False) -> float:
        """An estimate, or 0 if the interval does not carry it.

        ``has_neighbours``: it takes the CPU time of other processes into account.
        """
        sample = min(self.images_a_s / IMAGES_MIN, self.busy_workers / WORKER_SECONDS_MIN)
        others = self.neighbour_cpus / max(1, self.machine.cpus)
        is_shared = others > NEIGHBOURS_MAX or self.machine.pressure_cpu > PRESSURE_MAX
        is_carried = sample * self.seconds >= 1 and could <= FURTHEST * self.images_a_s
        return could if is_carried and (has_neighbours or not is_shared) else 0.0

    def delivered(self, could: float, *, has_neighbours: bool = False) -> float:
        """A checked estimate, and no more than clients would take if they never waited, as far as
        all have reported how long they wait."""
        if all(client.wait_share is not None for client in self.node_clients):
            taken = 0.0
            for group in self.by_client.values():
                waits = sum(client.wait_share or 0.0 for client in group)
                taken += sum(client.images_a_s for client in group) / max(0.01, 1.0 - waits)
            could = min(could, taken or inf)
        return self.checked(could, has_neighbours=has_neighbours)

    def without_neighbours(self) -> float:
        """With the CPU time that other processes use, as far as workers wait for it."""
        used, images = self.feeder_cpus, self.images_a_s
        if not used:
            return images
        without_delay = images / max(1.0 - self.mean_of_busy("run_delay_share"), 0.02)
        return min(without_delay, images * (used + self.neighbour_cpus) / used)

    def at_most(self, times: float) -> float:
        """At some times the present rate, as far as the CPUs allow it."""
        used = self.feeder_cpus
        available = max(used, self.machine.cpus - self.neighbour_cpus)
        return self.images_a_s * min(times, available / used) if used else 0.0


def and_more(parts: Collection[object]) -> str:
    """How many there are besides the first, if any."""
    return f" and {len(parts) - 1} more" if len(parts) > 1 else ""


def name_client(client: ClientRecord | ClientInterval) -> str:
    """A client's name, which has its host, process and rank, with its job."""
    return f"{client.name} of job {client.job}" if client.job else client.name


def round_estimate(images_a_s: float) -> str:
    """Two digits, such as 12,000."""
    if images_a_s < 10:
        return f"{images_a_s:.1f}"
    return f"{float(f'{images_a_s:.1e}'):,.0f}"
