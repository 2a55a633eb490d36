"""Whether a daemon is healthy and ready, from its latest report. Pure.

*Healthy* means that a restart of the daemon would not help: its supervisor makes reports, and it
keeps its own deadlines for node processes. It replaces a node process that hangs, spares one that
waits for storage or a CPU, and gives a successor time to start; a restart of the whole daemon would
only end the others as well. *Ready* means that all node processes serve.
"""

from collections.abc import Mapping
from typing import Final

from feeder.metrics.report import HostReport

REPORT_MAX_S: Final = 5.0
"""The supervisor makes a report every second."""

SILENT_MAX_S: Final = 45.0
"""The supervisor ends a silent node process after 30 s at most (feeder.daemon.node_process)."""

START_MAX_S: Final = 150.0
"""It gives a node process 120 s to start, after a backoff of 10 s at most."""

_STATES_MAX_S: Final[Mapping[str, float]] = {
    "starting": START_MAX_S,
    "restarting": START_MAX_S,
    "silent": SILENT_MAX_S,
    "hung": SILENT_MAX_S,
}
"""How long a node process may be in each state; in others for any time."""


def unhealthy_reason(report: HostReport | str, now_s: float) -> str:
    """Why the daemon is not healthy, in a line; "" if it is.

    A daemon that has no node processes yet has what it does instead, such as packing.
    """
    if isinstance(report, str):
        return ""
    late_s = now_s - report.clock_s
    if late_s > REPORT_MAX_S:
        return f"the supervisor has made no report for {late_s:.0f} s"
    for node in report.nodes:
        age_s = now_s - node.since_s
        if age_s > _STATES_MAX_S.get(node.state, float("inf")):
            return f"node process {node.number} has been {node.state} for {age_s:.0f} s"
    return ""


def not_ready_reason(report: HostReport | str, now_s: float) -> str:
    """Why the daemon is not ready, in a line; "" if it is; a text is as above."""
    if isinstance(report, str):
        return report
    for node in report.nodes:
        if node.state == "draining":
            return "draining"
        if node.state != "ready":
            return f"node process {node.number} is {node.state}"
    return unhealthy_reason(report, now_s)
