"""Whether a daemon is alive and ready, from its latest report. Pure.

*Healthy* means that a restart of the daemon would not help: its loop turns and its node processes
work, start, or were restarted a moment ago. *Ready* means that all of them serve.
"""

from dataclasses import dataclass
from typing import Final

from feeder.metrics.report import HostReport

TURN_MAX_S: Final = 5.0
"""The supervisor makes a report every second."""

RESTART_MAX_S: Final = 30.0
"""A node process that has not served again by then is in trouble; usually it takes 2 s."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A report, and since when each node process has been in its state."""

    report: HostReport
    since_s: tuple[float, ...]
    """On the machine's monotonic clock, by number."""


def find_illness(standing: Standing, now_s: float) -> str:
    """Return in a line why the daemon is not healthy, "" if it is."""
    report = standing.report
    late_s = now_s - report.clock_s
    if late_s > TURN_MAX_S:
        return f"the supervisor has done nothing for {late_s:.0f} s"
    for node, since_s in zip(report.nodes, standing.since_s, strict=True):
        if node.state == "hung":
            return f"node process {node.number} is hung"
        if node.state == "restarting" and now_s - since_s > RESTART_MAX_S:
            return f"node process {node.number} has been restarting for {now_s - since_s:.0f} s"
    return ""


def find_hindrance(standing: Standing, now_s: float) -> str:
    """Return in a line why the daemon is not ready, "" if it is."""
    for node in standing.report.nodes:
        if node.state == "draining":
            return "draining"
        if node.state != "ready":
            return f"node process {node.number} is {node.state}"
    return find_illness(standing, now_s)
