"""The state of a daemon's host, as its supervisor reports it.

It pairs the latest snapshot of each node process with one some seconds older, so that one report is
enough to show rates.
"""

import functools
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, Struct

from feeder.metrics import fields
from feeder.metrics.fields import Label, Seconds, ShortText, Total, counter, gauge, seconds
from feeder.metrics.records import NodeRecord, StoreRecord

VERDICT_CHARS_MAX: Final = 400

VerdictKind = Literal[
    "node-down", "draining", "stalled-storage", "silent-worker", "packing", "failing-batches",
    "silent-client", "starting", "idle", "client-bound", "healthy", "greedy-client", "memory-short",
    "cache-small", "store-bound", "io-bound", "quota-bound", "neighbour-bound", "cache-bound",
    "memory-bound", "compute-bound", "network-bound", "dispatch-bound", "window-bound"
]  # fmt: skip


class Verdict(Struct, frozen=True, kw_only=True):
    """What sets the pace of a daemon, in one line."""

    kind: VerdictKind = gauge(
        "What sets the daemon's pace: 1 for the kind that holds.", "verdict", start="starting"
    )
    text: Annotated[str, Meta(max_length=VERDICT_CHARS_MAX, pattern=fields.NO_CONTROLS)]
    """The kind, the evidence, and the next step."""
    is_problem: bool = gauge(
        "Whether clients wait or something is broken.", "verdict_is_problem", start=False
    )
    estimate_images_a_s: Seconds = 0.0  # what the next step would give; 0: no estimate


_pressure: Final = functools.partial(
    seconds,
    "Time in which some task of the machine waited for the resource.",
    "host_pressure_seconds",
    "resource",
)


class HostLoad(Struct, frozen=True, kw_only=True):
    """The machine's load, in totals since it booted."""

    METRICS: ClassVar[str] = "host_"

    clock_s: Seconds  # when it was read, on the machine's monotonic clock
    usable_cpus: Seconds = gauge("CPUs that affinity and quota leave.", start=0.0)
    cpus: Total = gauge("CPUs of the daemon's affinity.")  # busy_s and io_wait_s are of these
    busy_s: Seconds = seconds("CPU time of all processes.", "host_cpu_busy_seconds")
    io_wait_s: Seconds = seconds("Idle CPU time with a read waiting.", "host_cpu_io_wait_seconds")
    throttled_s: Seconds = seconds("Time for which a CPU quota stopped threads, by CPU.")
    pressure_cpu_s: Seconds = _pressure("cpu")
    """Pressure stall information; 0 where the kernel has none."""
    pressure_io_s: Seconds = _pressure("io")
    pressure_memory_s: Seconds = _pressure("memory")
    refaults: Total = counter("Pages read again after eviction.", "host_page_cache_refaults")
    free_memory_bytes: Total = gauge("Memory that is available.")  # without swapping


class Neighbour(Struct, frozen=True, kw_only=True):
    """A process that belongs neither to the daemon nor to its clients."""

    name: Label
    pid: Total
    cpus: Seconds  # that it uses


class HistoryPoint(Struct, frozen=True, kw_only=True):
    """Means over some seconds, for curves of minutes."""

    clock_s: Seconds  # their end
    images_a_s: Seconds
    busy_share: Seconds  # of the workers' time
    wait_share: Seconds  # of the clients' time


class ServedDatasetReport(Struct, frozen=True, kw_only=True):
    METRICS: ClassVar[str] = "dataset_"

    name: Label
    samples: Total = gauge("Samples of each dataset that is served.")
    classes: Total
    content: Label  # the content fingerprint
    fingerprint: Label  # the manifest's
    folder: ShortText


NodeState = Literal["starting", "ready", "draining", "silent", "hung", "restarting"]


class NodeReport(Struct, frozen=True, kw_only=True):
    METRICS: ClassVar[str] = "node_"

    number: Total
    state: NodeState = gauge(
        "The state of each node process: 1 for the one that holds.", start="starting"
    )
    """Silent: no heartbeat for 4 s, not judged yet or spared, as it waits for storage or a CPU.
    Hung: it was judged, and is being ended."""
    since_s: Seconds = 0.0
    """When it came into this state, on the machine's monotonic clock."""
    restarts: Total = counter("Node processes that were replaced.")
    hangs: Total = counter("Node processes that were replaced because they sent no heartbeats.")
    now: NodeRecord | None = None  # the latest snapshot
    before: NodeRecord | None = None  # an earlier one of the same process


class HostReport(Struct, frozen=True, kw_only=True):
    host: Label
    feeder_version: Label
    pid: Total  # the supervisor's
    name: Label = ""  # serve.name
    incarnation: Total = 0
    """Drawn when the daemon starts: reports with different ones are of different daemons."""
    clock_s: Seconds
    uptime_s: Seconds = gauge("Since the daemon started.", start=0.0)
    datasets: Annotated[tuple[ServedDatasetReport, ...], Meta(max_length=1024)]
    nodes: Annotated[tuple[NodeReport, ...], Meta(max_length=4096)]
    load: HostLoad
    load_before: HostLoad
    neighbours: Annotated[tuple[Neighbour, ...], Meta(max_length=8)] = ()
    """Those that use most CPU time, as far as /proc shows them; looked for only while the verdict
    is neighbour-bound, or about to be."""
    store: StoreRecord | None = None
    """The fetcher's latest record; None where no dataset is in a store."""
    store_before: StoreRecord | None = None
    verdict: Verdict
    history: Annotated[tuple[HistoryPoint, ...], Meta(max_length=1024)] = ()
    """Oldest first."""
    warnings: Annotated[tuple[ShortText, ...], Meta(max_length=64)] = ()  # of the start
    log_lines_dropped: Total = counter(
        "Log lines of the supervisor that were dropped because nothing read them.",
        "supervisor_log_lines_dropped",
    )
    log_lines_limited: Total = counter(
        "Log lines of the supervisor that were suppressed because they repeated.",
        "supervisor_log_lines_limited",
    )
