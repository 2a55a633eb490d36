"""The records of what a node process, its workers, clients, jobs and cache have done and are doing.

The node process's own is counted in from its start on, and sent twice a second with the others.
Counters are since the subject started (of a client: its sessions); rates come from two records
(``feeder.diagnosis.interval``). All values are bounded, because records also travel over the wire.
"""

from bisect import bisect_left
from collections import Counter
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, Struct, field

from feeder.metrics import fields
from feeder.metrics.fields import Label, Seconds, ShortText, Total, counter, gauge, seconds
from feeder.metrics.hangs import KernelState

CLIENTS_MAX: Final = 64
"""Clients of a record, as a rule the fastest ones; the others are summed up as OTHERS."""
JOBS_MAX: Final = 32
"""Jobs of a record, those with sessions first; the others are summed up as OTHER_JOBS."""
WORKERS_MAX: Final = 256  # more share a NUMA node on no machine today
OTHERS: Final = "other clients"
OTHER_JOBS: Final = "other jobs"

BOUNDS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0
)  # fmt: skip
"""Upper bounds of a histogram's buckets, inclusive; one more bucket has no upper bound. A chunk
takes 30 ms, a batch that waits for its turn a second."""

STORE_RETRIES: Final = ("unreachable", "timeout", "server", "throttled", "reset", "short")
REFRESH: Final = "credentials"
"""The reason of retries that stands for a refresh of the credentials that failed."""
STORE_FAILURES: Final = (
    "gone", "denied", "expired", "changed", *STORE_RETRIES, "unknown", "damaged", "disk-full",
    "disk-read-only", "disk-failing"
)  # fmt: skip

PEER_FAILURES: Final = ("away", "rate", "refused", "damaged")


class Histogram(Struct, kw_only=True):
    """Durations since the process started, counted in buckets."""

    counts: Annotated[list[Total], Meta(max_length=32)] = field(
        default_factory=lambda: [0] * (len(BOUNDS_S) + 1)
    )
    """Durations in each bucket of BOUNDS_S, not accumulated; the last bucket has no bound."""
    total_s: Annotated[float, Meta(ge=0)] = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration; a negative one, after a clock's correction, counts as 0."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds


class WorkerRecord(Struct, kw_only=True):
    METRICS: ClassVar[str] = "worker_"

    number: Total
    pid: Total = 0
    state: Literal["starting", "idle", "busy", "silent"] = "starting"
    """Silent: it has a chunk and made no progress for SILENT_S (feeder.session.worker_watch)."""
    silent_s: Seconds = gauge(merge=max, start=0.0)  # since its last progress, while it is silent
    kernel_state: KernelState | None = None  # while it is silent; None if unknown
    cpu: int = -1  # that it last ran on; -1 if unknown
    chunks: Total = counter()
    images: Total = counter("Images that workers have made.")
    busy_s: Seconds = seconds("Time of workers in chunks.")
    """Wall-clock time, that of a chunk in flight included."""
    cpu_s: Seconds = seconds("CPU time of workers.")
    """In chunks only, where the kernel counts none by thread (/proc/PID/schedstat)."""
    run_delay_s: Seconds = seconds("Time in which workers could run and waited for a CPU.")
    """From /proc/PID/schedstat."""
    read_bytes: Total = counter(
        "Bytes that workers read from storage, past the page cache.", "worker_storage_bytes"
    )
    """From /proc/PID/io, as the next one."""
    requested_bytes: Total = counter(
        "Bytes that workers read, from page cache or storage.", "worker_read_bytes"
    )


class SlotSeconds(Struct, kw_only=True):
    """How long slots were in each state, summed over slots: divided by time, a mean number."""

    free: Seconds = seconds()
    filling: Seconds = seconds()
    """A batch is queued or being filled in it."""
    sending: Seconds = seconds()
    """The socket still reads chunks of it: the network or the client takes them too slowly."""
    client: Seconds = seconds()
    """Its batch is whole and the client has not released it."""


class ClientRecord(Struct, kw_only=True):
    """A session, or all sessions of one client at a node process.

    Counters of a client are of the time since it is one of CLIENTS_MAX, so they only grow.
    """

    name: Label  # as its Hello has it: usually host, process id and rank
    account: Label  # the user, key or address that limits apply to
    dataset: Label
    job: Label = ""  # as its Hello has it; "" where it gave none
    is_lent: bool = gauge(merge=all, start=False)
    """Whether it maps the slots; else batches are copied over the socket."""
    clients: Annotated[int, Meta(ge=1)] = gauge(start=1)  # more than one for OTHERS
    sessions: Total = gauge(start=1)
    silent_s: Seconds = gauge(merge=max, start=0.0)
    """Since the last message of the session that has sent none for longest. 0 for clients that send
    no pings, which may be silent for any time."""
    window: Total = gauge()  # batches that it may have in flight
    lanes: Total = gauge(merge=max)  # of its recipe's order, like the next
    working_set_bytes: Total = gauge(merge=max)
    wanted: Total = gauge()  # batches requested and not released
    images: Total = counter()
    batches: Total = counter()
    sent_bytes: Total = counter()
    worker_s: Seconds = seconds()  # wall-clock time of workers for its chunks
    waited_s: Seconds = seconds()
    """Time in which its training loop waited for a batch of this node process; from its pings."""
    clock_s: Seconds = seconds()
    """Time of its own clock over which ``waited_s`` was counted; 0: it has sent no ping yet."""
    cpu_s: Seconds = seconds()  # of its process, over the same time
    is_local: bool = gauge(merge=all, start=False)  # it runs on this host
    slots: SlotSeconds = counter(start=SlotSeconds)


class JobRecord(Struct, kw_only=True):
    """All sessions of one job, an account's by the name in their Hellos, ended ones included."""

    METRICS: ClassVar[str] = "job_"

    name: Label  # "" for the sessions of an account that gave none
    account: Label
    weight: Seconds = 1.0
    """Its share of the workers' time is this over the sum of those of all that wait for workers."""
    sessions: Total = gauge()
    images: Total = counter("Real images delivered, by job.")
    batches: Total = counter("Batches delivered whole, by job.")
    worker_s: Seconds = seconds("Time of workers in chunks, by job: what jobs share by weight.")


class FailureRecord(Struct, kw_only=True):
    """The batches of a dataset that could not be made."""

    dataset: Label
    batches: Total = 0
    reason: Label = ""
    """The last one's, as in the counter ``batches_failed``; so is the message. It is "dataset"
    where the dataset cannot be opened, so that no batch of it is begun."""
    message: ShortText = ""
    ago_s: Seconds = 0.0  # since the last one
    is_last: bool = True  # no batch of the dataset was made since


class CacheRecord(Struct, kw_only=True):
    """The decoded cache; all zero without one."""

    METRICS: ClassVar[str] = "cache_"

    budget_bytes: Total = gauge("Memory for the cache.")
    used_bytes: Total = gauge("Memory of cached images.")
    full_bytes: Total = gauge("Memory to cache all images.")
    hits: Total = counter("Images found in the decoded cache.")
    misses: Total = counter("Images not found in the decoded cache.")
    fills: Total = counter("Entries added to the decoded cache.")
    moved_bytes: Total = counter("Bytes of pixels read from the decoded cache or written to it.")


class StoreRecord(Struct, kw_only=True):
    """A daemon's fetcher: what it got from object stores, and the disk cache that it fills."""

    METRICS: ClassVar[str] = "store_"

    pid: Total = 0
    clock_s: Seconds = 0.0  # when this was sent, on the machine's monotonic clock
    cpu_s: Seconds = seconds("CPU time of the fetcher.", "fetcher_cpu_seconds")
    fetched_bytes: Total = counter("Bytes that came from object stores.")
    pieces: Total = counter("Pieces fetched, whole or their missing part.")
    blobs: Total = counter("Samples fetched, those of pieces included.")
    requests: Total = counter("Requests to object stores, repeated ones included.")
    retries: Annotated[dict[Label, Total], Meta(max_length=32)] = counter(
        "Requests to object stores that were repeated, by reason.",
        label="reason",
        values=(*STORE_RETRIES, REFRESH),
        start=Counter,
    )
    damaged: Total = fields.trouble("Samples that came from the store with a wrong checksum.")
    peer_requests: Total = counter("Requests for samples to other feeders.")
    peer_blobs: Total = counter("Samples that came from other feeders.")
    peer_bytes: Total = counter("Bytes that came from other feeders.")
    peer_failures: Annotated[dict[Label, Total], Meta(max_length=8)] = counter(
        "Requests to other feeders that failed, and samples that came damaged, by reason.",
        label="reason",
        values=PEER_FAILURES,
        start=Counter,
    )
    failures: Annotated[dict[Label, Total], Meta(max_length=32)] = counter(
        "Requests of batches for samples that could not be had, by reason.",
        label="reason",
        values=STORE_FAILURES,
        start=Counter,
        is_trouble=True,
    )
    waiting: Total = gauge("Batches that wait for samples from the store.")
    queued_pieces: Total = gauge("Pieces that are to be fetched ahead.")
    transfers: Total = gauge("Transfers in flight.")
    used_bytes: Total = gauge("Bytes of the disk cache, all datasets.", "disk_cache_used_bytes")
    budget_bytes: Total = gauge("Bytes that the disk cache may take.", "disk_cache_budget_bytes")
    full_bytes: Total = gauge(
        "Bytes of all samples that this host owns; 0 while that is unknown.",
        "disk_cache_full_bytes",
    )
    evicted_pieces: Total = counter("Pieces evicted.", "disk_cache_evicted_pieces")
    evicted_bytes: Total = counter("Bytes freed by evictions.", "disk_cache_evicted_bytes")
    over_budget: Total = fields.trouble(
        "Times that waiting batches took the cache past its budget."
    )
    expires_in_s: float = gauge(
        "Until the credentials in use expire, 0 once they have; -1 where that is unknown.",
        "credentials_expire_seconds",
        start=-1.0,
        merge=min,
    )


class NodeRecord(Struct, kw_only=True):
    FLAT: ClassVar[tuple[str, ...]] = (
        "images", "batches", "stages", "cache", "silences", "workers_killed", "worker_restarts"
    )  # fmt: skip
    """Those that are among the flat counters, too, as their metrics are named."""

    number: Total = 0
    name: ShortText = ""
    pid: Total = 0
    clock_s: Seconds = 0.0  # when this was sent, on the machine's monotonic clock
    uptime_s: Seconds = gauge("Since the node process started.", "node_uptime_seconds", start=0.0)
    endpoints: Annotated[tuple[ShortText, ...], Meta(max_length=16)] = ()
    cpus: Label = ""  # that it and its workers may use, such as "0-15,64-79"
    workers: Annotated[tuple[WorkerRecord, ...], Meta(max_length=WORKERS_MAX)] = ()
    lost_worker_busy_s: Seconds = seconds()  # of workers that have ended
    clients: Annotated[tuple[ClientRecord, ...], Meta(max_length=CLIENTS_MAX + 1)] = ()
    jobs: Annotated[tuple[JobRecord, ...], Meta(max_length=JOBS_MAX + 1)] = ()
    images: Total = counter("Real images delivered, without padding.")
    batches: Total = counter("Batches delivered whole.")
    """Lent in place, or every chunk sent."""
    sent_bytes: Total = counter("Bytes copied over sockets to clients.")
    lent_bytes: Total = counter("Bytes that clients read in place.")
    stages: Annotated[dict[Label, Seconds], Meta(max_length=32)] = counter(
        "Time of workers in each stage of the sample path.", "stage_seconds", "stage", start=dict
    )
    decoded_bytes: Total = counter("Bytes of decoded pixels.")
    memory_bytes_a_s: Seconds = gauge(
        "Copy bandwidth that was measured at the start, bytes read plus bytes written.",
        "memory_bandwidth_bytes_per_second",
        start=0.0,
    )
    slots: SlotSeconds = counter(start=SlotSeconds)
    queued_batches: Total = gauge("Batches that wait for a worker or slot.")
    chunks_in_flight: Total = gauge("Chunks that workers have.")
    cache: CacheRecord = counter(start=CacheRecord)
    stalled_datasets: Annotated[tuple[Label, ...], Meta(max_length=64)] = ()
    failures: Annotated[tuple[FailureRecord, ...], Meta(max_length=64)] = ()
    """By dataset, the latest first."""
    silences: Total = counter("Times that a worker became silent.", "worker_silences")
    workers_killed: Total = counter("Workers killed without progress.")
    worker_restarts: Total = counter("Workers that were replaced.")
    own_cpu_s: Seconds = seconds("CPU time of node processes, no workers.", "node_cpu_seconds")
    loop_cpu_s: Seconds = seconds()
    """The part of its event loop, which is one thread."""
    chunk_s: Histogram = fields.histogram(
        "From a chunk's dispatch to its last row.", "chunk_duration_seconds", start=Histogram
    )
    fetching_batches: Total = gauge("Batches that wait for samples from a store.")
    fetch_s: Histogram = fields.histogram(
        "From a batch's request until its samples were on disk.",
        "fetch_duration_seconds",
        start=Histogram,
    )
    batch_s: Histogram = fields.histogram(
        "From a batch's request to its last row.", "batch_duration_seconds", start=Histogram
    )
    counters: Annotated[
        dict[Label, int | float | Annotated[str, Meta(max_length=4096)]], Meta(max_length=4096)
    ] = {}
    """Everything else, by name (``counters``)."""
