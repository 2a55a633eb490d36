"""What the daemon shows of itself: its datasets, the host's report in parts, and its metrics."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from feeder.daemon.config import Config
from feeder.daemon.start_report import FINGERPRINT_CHARS
from feeder.dataset.first_read import check_readable
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError
from feeder.metrics.report import HostReport, ServedDatasetReport
from feeder.monitoring.access import parse_address
from feeder.node.messages import ReportPart
from feeder.process.path_text import printable

if TYPE_CHECKING:
    from feeder.monitoring.server import MetricsServer

PART_BYTES: Final = 64 * 1024
"""Half of the largest packet of a channel."""

_NAME_CHARS_MAX: Final = 256
_PATH_CHARS_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class ServedDataset:
    """A dataset, as reports of the host have it and as a line of the report of the start."""

    report: ServedDatasetReport
    line: str


def describe_datasets(folders: Mapping[str, Path]) -> tuple[ServedDataset, ...]:
    """Open each dataset and describe it, in the order of their names.

    FeederError if there is none, or one is damaged or does not answer.
    """
    if not folders:
        raise ConfigError("there is nothing to serve: give --data NAME=FOLDER, or [data] in a file")
    check_readable({f"dataset {name} at {path}": path for name, path in folders.items()})
    return tuple(_describe(name, folder) for name, folder in sorted(folders.items()))


def _describe(name: str, folder: Path) -> ServedDataset:
    with Dataset.open(folder) as dataset:
        layout, fingerprint = dataset.layout, dataset.fingerprint
        labels = dataset.labels.describe(len(dataset.classes))
        report = ServedDatasetReport(
            name=name,
            samples=layout.samples,
            classes=len(dataset.classes),
            fingerprint=fingerprint,
            folder=printable(str(folder))[-_PATH_CHARS_MAX:],
        )
    line = (
        f"data {name}: {layout.samples:,} sample{'s' * (layout.samples != 1)}, "
        f"{layout.shards:,} shard{'s' * (layout.shards != 1)}, {labels}, "
        f"{fingerprint[:FINGERPRINT_CHARS]}"
    )
    return ServedDataset(report, line)


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
    from feeder.monitoring.access import TokenFile
    from feeder.monitoring.server import MetricsServer

    token = TokenFile(Path(serve.metrics_token)) if serve.metrics_token else None
    return MetricsServer(parse_address(serve.metrics), token=token)
