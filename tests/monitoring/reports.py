"""Reports of hosts for the metrics: two node processes, and each kind of count."""

from typing import Any

import msgspec

from feeder.metrics.records import (
    BOUNDS_S,
    CacheRecord,
    ClientRecord,
    Histogram,
    NodeRecord,
    SlotSeconds,
)
from feeder.metrics.report import HostReport, NodeReport, Verdict
from tests.support import host_reports
from tests.support.host_reports import report, worker

HISTOGRAM = Histogram(counts=[1, 2, *[0] * (len(BOUNDS_S) - 2), 4], total_s=300.25)
COUNTERS: dict[str, int | float | str] = {
    "node": "h/0",
    "frames_dropped.malformed": 5,
    "frames_dropped.newly-found": 2,
    "sessions_closed": 4,
    "sessions_expired": 1,
    "batches_failed.bad-sample": 6,
    "batches_failed.stalled-storage": 1,
    "bad_samples": 2,
    "fallbacks.turbojpeg": 5,
    "fallbacks.copied-tcp": 8,
    "library_warnings": 1,
    "worker_pause_s": 0.25,
    "sessions": 2,
}


def client(name: str, images: int, waited_s: float = 0.0) -> ClientRecord:
    clock_s = waited_s and 10.0 * images / 1000
    return host_reports.client(name, images=images, waited_s=waited_s, clock_s=clock_s)


def node_snapshot(at_s: float, **fields: Any) -> NodeRecord:
    usual = {
        "number": 0,
        "name": "h/0",
        "pid": 40,
        "clock_s": at_s,
        "uptime_s": at_s,
        "endpoints": ("tcp://127.0.0.1:5555",),
        "workers": (
            worker(0, busy_s=at_s / 2),
            worker(1, state="silent", silent_s=2.5, busy_s=at_s / 2),
        ),
        "stages": {"read": 1.5, "decode": 20.0},
        "slots": SlotSeconds(free=2 * at_s, filling=0.5 * at_s, client=1.5 * at_s),
        "queued_batches": 3,
        "cache": CacheRecord(budget_bytes=1000, used_bytes=10, full_bytes=2000, hits=7, misses=3),
        "silences": 1,
        "chunk_s": HISTOGRAM,
        "batch_s": HISTOGRAM,
        "counters": COUNTERS,
    }
    return NodeRecord(**(usual | fields))


def node_in(state: Any, number: int = 0, since_s: float = 0.0) -> NodeReport:
    return NodeReport(number=number, state=state, since_s=since_s)


def host_report(*nodes: NodeReport, kind: Any = "healthy", at_s: float = 100.0) -> HostReport:
    return msgspec.structs.replace(
        report(*nodes, cpus=2, busy_cpus=5.0, pressure_io_s=4.5),
        host="h",
        feeder_version="1.2.3",
        clock_s=at_s,
        verdict=Verdict(kind=kind, text=f"{kind}: so it is", is_problem=kind != "healthy"),
    )


def busy_report(at_s: float = 100.0) -> HostReport:
    """Two node processes, which made 1000 and 500 images in 10 s."""
    nodes = []
    for number, images in ((0, 1000), (1, 500)):
        name = f"trainer pid {number}123 rank 3"
        first, last = client(name, 0), client(name, images, waited_s=images / 400)
        before = node_snapshot(at_s - 10, number=number, images=5, clients=(first,))
        now = node_snapshot(at_s, number=number, images=5 + images, clients=(last,))
        nodes.append(NodeReport(number=number, state="ready", now=now, before=before))
    return host_report(*nodes, at_s=at_s)
