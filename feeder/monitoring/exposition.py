"""A host's report as text for scrapers: Prometheus text 0.0.4 or OpenMetrics 1.0.0."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest as encode_text
from prometheus_client.openmetrics.exposition import generate_latest as encode_openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from feeder.metrics.report import HostReport
from feeder.monitoring.report_metrics import describe_packing, describe_report
from feeder.monitoring.worker_places import WorkerPlaces

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_VERSION: Final = re.compile(r";\s*version\s*=\s*([^;]*)")


class Exposition:
    """Renders reports; keeps the last rendering in each of the two formats."""

    __slots__ = ("_collector", "_kept", "_registry")

    def __init__(self) -> None:
        self._collector = _ReportCollector()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)
        self._kept: dict[str, tuple[HostReport | None, bytes]] = {}  # by content type

    def render(self, report: HostReport | None, accept: str = "") -> tuple[bytes, str]:
        """Return the text and its content type, in the format that an Accept header asks for.

        There is no report while the daemon packs.
        """
        content_type = choose_format(accept)
        kept = self._kept.get(content_type)
        if kept is not None and kept[0] is report:
            return kept[1], content_type
        self._collector.report = report
        encode = encode_openmetrics if content_type == _OPENMETRICS else encode_text
        text: bytes = encode(self._registry)
        self._kept[content_type] = report, text
        return text, content_type


def choose_format(accept: str) -> str:
    """Return the content type for an Accept header: one of two, whatever the header contains.

    The first format that is listed and known; Prometheus text if there is none. Prometheus lists
    the formats by preference. The library's own choice copies the version into the content type,
    so that a client could have the report rendered and kept any number of times.
    """
    for listed in accept.lower().split(","):
        name = listed.partition(";")[0].strip()
        if name == "text/plain":
            return _TEXT
        if name == "application/openmetrics-text":
            version = _VERSION.search(listed)
            if version is None or version[1].strip() in ("", "1") or version[1].startswith("1."):
                return _OPENMETRICS
    return _TEXT


class _ReportCollector(Collector):
    """Yields the metrics of a report."""

    report: HostReport | None = None

    def __init__(self) -> None:
        self._places = WorkerPlaces()

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield describe_packing(is_packing=self.report is None)
        if self.report is not None:
            yield from describe_report(self.report, self._places)
