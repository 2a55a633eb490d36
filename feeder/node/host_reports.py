"""Clients' requests for the report of the whole host, which only the supervisor can make.

The node process asks the supervisor once for all clients that wait, and answers them together.
Invariant: at most WAITING_MAX peers wait, none for longer than ANSWER_WITHIN_S.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from feeder.metrics.report import HostReport
from feeder.node.messages import ReportPart
from feeder.wire.messages import MAX_NODE_HEADER_BYTES

WAITING_MAX: Final = 64
ANSWER_WITHIN_S: Final = 2.0
"""A supervisor that takes longer is stopped or overloaded."""

FRESH_S: Final = 0.2
"""A report that is younger is sent again: the supervisor makes two a second."""

_log = logging.getLogger(__name__)


class HostReports:
    """The latest report, and the peers that wait for one."""

    def __init__(self, ask: Callable[[], None]) -> None:
        """``ask`` requests a report from the supervisor; ``add_part`` takes what it sends."""
        self._ask = ask
        self._waiting: dict[bytes, None] = {}
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._report: HostReport | None = None
        self._received_s = float("-inf")
        self.deadline_s = float("inf")
        """When ``take_expired`` is due."""

    def request(self, peer: bytes, now_s: float) -> tuple[bool, HostReport | None]:
        """Handle a peer's request; return whether to answer at once, and with what.

        A second request of a peer that waits is answered by the same report.
        """
        if self._report is not None and now_s - self._received_s < FRESH_S:
            return True, self._report
        if peer in self._waiting:
            return False, None
        if len(self._waiting) >= WAITING_MAX:
            return True, None
        if not self._waiting:
            self.deadline_s = now_s + ANSWER_WITHIN_S
            self._ask()
        self._waiting[peer] = None
        return False, None

    def add_part(self, part: ReportPart, now_s: float) -> tuple[Sequence[bytes], HostReport | None]:
        """Take a piece of a report; return the peers to answer now, and with what."""
        self._parts_bytes += len(part.data)
        if self._parts_bytes <= MAX_NODE_HEADER_BYTES:  # clients take no more
            self._parts.append(part.data)
        if not part.is_last:
            return (), None
        data, fits = b"".join(self._parts), self._parts_bytes <= MAX_NODE_HEADER_BYTES
        self._parts, self._parts_bytes = [], 0
        report: HostReport | None = None
        try:
            report = msgspec.msgpack.decode(data, type=HostReport) if fits else None
        except msgspec.MsgspecError as error:
            _log.warning("the supervisor's report of the host is malformed: %s", error)
        if report is not None:
            self._report, self._received_s = report, now_s
        return self._take_waiting(), report

    def take_expired(self, now_s: float) -> Sequence[bytes]:
        """The peers to answer without a report, because the supervisor has not sent one."""
        return self._take_waiting() if self.deadline_s <= now_s else ()

    def _take_waiting(self) -> Sequence[bytes]:
        waiting, self._waiting, self.deadline_s = tuple(self._waiting), {}, float("inf")
        return waiting
