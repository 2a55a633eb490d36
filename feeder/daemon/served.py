"""What the daemon shows of itself: its datasets, the host's report in parts, and its metrics."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from feeder.daemon.config import Config
from feeder.dataset.opened import Dataset
from feeder.metrics.report import HostReport, ServedDatasetReport
from feeder.monitoring.address import parse_address
from feeder.node.messages import ReportPart
from feeder.process.path_text import printable

if TYPE_CHECKING:
    from feeder.monitoring.server import MetricsServer

PART_BYTES: Final = 64 * 1024
"""Half of the largest packet of a channel."""

_NAME_CHARS_MAX: Final = 256
_PATH_CHARS_MAX: Final = 512


def describe_served(folders: Mapping[str, Path]) -> tuple[ServedDatasetReport, ...]:
    """Return what a report has about each dataset, by name; FeederError if one is damaged."""
    served: list[ServedDatasetReport] = []
    for name, folder in sorted(folders.items()):
        with Dataset.open(folder) as dataset:
            served.append(
                ServedDatasetReport(
                    name=name,
                    samples=dataset.layout.samples,
                    classes=len(dataset.classes),
                    fingerprint=dataset.fingerprint,
                    folder=printable(str(folder))[-_PATH_CHARS_MAX:],
                )
            )
    return tuple(served)


def host_name() -> str:
    """Return this machine's name as a report has it."""
    return printable(socket.gethostname())[:_NAME_CHARS_MAX]


def split_report(report: HostReport) -> list[ReportPart]:
    """Return a report in pieces of PART_BYTES, in order."""
    data = msgspec.msgpack.encode(report)
    starts = range(0, len(data), PART_BYTES)
    return [
        ReportPart(is_last=start + PART_BYTES >= len(data), data=data[start : start + PART_BYTES])
        for start in starts
    ]


def open_metrics(config: Config) -> "MetricsServer | None":
    """Return the metrics' server, bound and not started; None where none is configured.

    It answers that the daemon packs until it has the health of a supervisor.

    Raises ConfigError for a token that cannot be used, ResourceError for a port in use.
    """
    serve = config.serve
    if not serve.metrics:
        return None
    # Not loaded otherwise: an event loop and the Prometheus client take 8 MB and 0.1 s.
    from feeder.monitoring.server import MetricsServer
    from feeder.monitoring.token import TokenFile

    token = TokenFile(Path(serve.metrics_token)) if serve.metrics_token else None
    return MetricsServer(parse_address(serve.metrics), token=token)
