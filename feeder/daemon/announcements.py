"""Decides when a verdict is worth a line in the log and a message to clients.

Of the same kind there is at most one line a minute. Pure: the caller has the clock.
"""

from dataclasses import dataclass
from typing import Final

from feeder.metrics.report import Verdict
from feeder.process.log_lines import LogLimiter

REFRESH_S: Final = 10.0
"""Between two messages with the same kind and new figures."""

_LOGGED_ELSEWHERE: Final = frozenset({"starting", "draining", "node-down"})
"""Kinds whose events the supervisor logs itself."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What to do about a verdict."""

    verdict: Verdict
    is_new: bool
    """Whether its kind has changed, so that systemd should know."""
    is_logged: bool


class Announcer:
    """Takes the verdict of each report."""

    __slots__ = ("_announced", "_announced_s", "_lines", "_logged")

    def __init__(self) -> None:
        self._announced: Verdict | None = None
        self._announced_s = 0.0
        self._lines = LogLimiter(admitted_max=1)
        self._logged = ""

    def observe(self, verdict: Verdict, now_s: float) -> Announcement | None:
        """Return what to do now; None for nothing."""
        announced = self._announced
        if announced is None or verdict.kind != announced.kind:
            return self._announce(verdict, now_s, is_new=True)
        if now_s - self._announced_s < REFRESH_S:
            return None
        if verdict.text == announced.text and verdict.kind == self._logged:
            return None
        return self._announce(verdict, now_s, is_new=False)

    def _announce(self, verdict: Verdict, now_s: float, *, is_new: bool) -> Announcement:
        self._announced, self._announced_s = verdict, now_s
        # A line that was held back follows once it may, so that the log's last one is true.
        is_logged = verdict.kind not in (
            self._logged,
            *_LOGGED_ELSEWHERE,
        ) and self._lines.admit(verdict.kind, now_s)
        if is_logged:
            self._logged = verdict.kind
        return Announcement(verdict, is_new, is_logged)
