"""Finds feeders that have the same name (serve.name), which must be unique among those of a job.

Clients take node processes of one name for one process: they would send all requests for its lanes
to whichever answered first.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from feeder.metrics.report import HostReport


@dataclass(frozen=True, slots=True)
class SharedName:
    """Different daemons with one name."""

    name: str
    feeders: tuple[str, ...]
    """One for each daemon: its host and the endpoint that reported it."""

    @property
    def line(self) -> str:
        """What is wrong, where, and what to do."""
        return (
            f"{len(self.feeders)} feeders are named {self.name}: {', '.join(self.feeders)}; give "
            "each its own name (serve.name), or end the ones that were replaced"
        )


def find_shared_names(reports: Iterable[tuple[str, HostReport]]) -> tuple[SharedName, ...]:
    """Return the names that several daemons have, given each endpoint with its host's report.

    Reports of the same daemon, from several of its endpoints, count once.
    """
    feeders: dict[str, dict[int, str]] = {}
    for endpoint, report in reports:
        if report.name:
            same = feeders.setdefault(report.name, {})
            same.setdefault(report.incarnation, f"{report.host} at {endpoint}")
    return tuple(
        SharedName(name, tuple(same.values())) for name, same in feeders.items() if len(same) > 1
    )
