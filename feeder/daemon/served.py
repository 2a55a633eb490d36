"""What the daemon serves, and what is sent to a node process of the host's report."""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from feeder.dataset.opened import Dataset
from feeder.metrics.report import HostReport, ServedDatasetReport
from feeder.node.messages import ReportPart
from feeder.process.path_text import printable

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
