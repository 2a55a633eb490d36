"""A node process that answers status requests with given reports."""

from collections.abc import Callable, Iterable

from feeder.metrics.report import HostReport
from feeder.wire.messages import (
    ClientMessage,
    HostStats,
    HostStatsRequest,
    NamesRequest,
    NodeMessage,
    SourcesRequest,
    Stats,
    StatsRequest,
    encode,
)
from tests.support.fake_node import FakeNode


class ReportNode(FakeNode):
    """Answers each request with the next report, the last one again and again.

    A report of None is what a node process answers while its supervisor is silent.
    """

    def __init__(self, *reports: HostReport | None, endpoint: str | None = None) -> None:
        self.answer_names: Callable[[NamesRequest], NodeMessage] | None = None
        self.answer_sources: Callable[[SourcesRequest], NodeMessage] | None = None
        self.show(reports)
        super().__init__(endpoint=endpoint)

    def show(self, reports: Iterable[HostReport | None]) -> None:
        """Replace the reports."""
        self._reports = list(reports)

    def _handle(self, peer: bytes, message: ClientMessage) -> None:
        super()._handle(peer, message)
        if isinstance(message, StatsRequest):
            self.send([encode(Stats(counters={"batches": 12}))], peer)
        elif isinstance(message, HostStatsRequest):
            reports = self._reports
            report = reports.pop(0) if len(reports) > 1 else reports[0]
            self.send([encode(HostStats(report=report))], peer)
        elif isinstance(message, NamesRequest) and self.answer_names is not None:
            self.send([encode(self.answer_names(message))], peer)
        elif isinstance(message, SourcesRequest) and self.answer_sources is not None:
            self.send([encode(self.answer_sources(message))], peer)
