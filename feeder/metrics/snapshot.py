"""A node process at one time: what it has counted since it started, and its present state.

Names that end in ``_s``, ``images``, ``batches``, ``chunks`` or ``bytes`` are totals since the
process (for a worker: the worker, for a client: its sessions) started, unless they say *now*. Rates
come from two snapshots (``feeder.diagnosis.interval``). All values are bounded, because snapshots
also travel over the wire.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from feeder.metrics.hangs import KernelState
from feeder.metrics.histogram import HistogramSnapshot

CLIENTS_MAX: Final = 64
"""Clients of a snapshot, as a rule the fastest ones; the others are summed up as OTHERS."""

JOBS_MAX: Final = 32
"""Jobs of a snapshot, those with sessions first; the others are summed up as OTHER_JOBS."""

WORKERS_MAX: Final = 256
"""Workers of a snapshot. More share a NUMA node on no machine today."""

OTHERS: Final = "other clients"
OTHER_JOBS: Final = "other jobs"

Total = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0, le=1e18)]
"""Finite, so that all rates are."""
NO_CONTROLS: Final = r"^[^\x00-\x1f\x7f-\x9f]*\Z"
"""Texts of a report end up on terminals."""

ShortText = Annotated[str, Meta(max_length=512, pattern=NO_CONTROLS)]
Label = Annotated[str, Meta(max_length=256, pattern=NO_CONTROLS)]


class WorkerSnapshot(Struct, frozen=True, kw_only=True):
    """A worker."""

    number: Total
    pid: Total
    state: Literal["starting", "idle", "busy", "silent"]
    """Silent: it has a chunk and made no progress for SILENT_S (session.worker_watch)."""
    silent_s: Seconds = 0.0
    """Now: since its last progress, while it is silent."""
    kernel_state: KernelState | None = None
    """Now, while it is silent; None if unknown."""
    cpu: int = -1
    """Now: the CPU that it last ran on; -1 if unknown."""
    chunks: Total = 0
    images: Total = 0
    busy_s: Seconds = 0.0
    """Wall-clock time in chunks, that of one in flight included."""
    cpu_s: Seconds = 0.0
    """CPU time; in chunks, where the kernel counts none by thread (/proc/PID/schedstat)."""
    run_delay_s: Seconds = 0.0
    """Time in which it could run and waited for a CPU (/proc/PID/schedstat)."""
    read_bytes: Total = 0
    """Bytes that storage had to deliver, because they were not in the page cache (/proc/PID/io)."""
    requested_bytes: Total = 0
    """Bytes that it has read, from page cache or storage (/proc/PID/io)."""


class SlotSeconds(Struct, frozen=True, kw_only=True):
    """How long slots were in each state, summed over slots: divided by time, a mean number."""

    free: Seconds = 0.0
    filling: Seconds = 0.0
    """A batch is queued or being filled in it."""
    sending: Seconds = 0.0
    """The socket still reads chunks of it: the network or the client takes them too slowly."""
    client: Seconds = 0.0
    """Its batch is whole and the client has not released it."""


class ClientSnapshot(Struct, frozen=True, kw_only=True):
    """All sessions of one client at a node process.

    Totals are of the time since the client is one of CLIENTS_MAX, so they only grow while it is.
    """

    name: Label
    """As its Hello has it: usually host, process id and rank."""
    account: Label
    """The user, key or address that limits apply to."""
    dataset: Label
    job: Label = ""
    """As its Hello has it; "" where it gave none."""
    is_lent: bool
    """Whether it maps the slots; else batches are copied over the socket."""
    clients: Annotated[int, Meta(ge=1)] = 1
    """Now: how many clients these are, of OTHERS."""
    sessions: Total = 1
    """Now."""
    silent_s: Seconds = 0.0
    """Now: since the last message of the session that has sent none for longest. 0 for clients that
    send no pings, which may be silent for any time."""
    window: Total = 0
    """Now: batches that it may have in flight."""
    wanted: Total = 0
    """Now: batches requested and not released."""
    images: Total = 0
    batches: Total = 0
    sent_bytes: Total = 0
    worker_s: Seconds = 0.0
    """Workers' wall-clock time for its chunks."""
    waited_s: Seconds = 0.0
    """Time in which its training loop waited for a batch of this node process; from its pings."""
    clock_s: Seconds = 0.0
    """Time of its own clock over which ``waited_s`` was counted; 0: it has sent no ping yet."""
    cpu_s: Seconds = 0.0
    """CPU time of its process over the same time."""
    is_local: bool = False
    """Whether it runs on this host."""
    slots: SlotSeconds = SlotSeconds()


class JobSnapshot(Struct, frozen=True, kw_only=True):
    """All sessions of one job at a node process, those that have ended included.

    A job is an account and the name that its sessions gave in their Hellos.
    """

    name: Label
    """"" for the sessions of an account that gave none."""
    account: Label
    """As in ClientSnapshot."""
    weight: Seconds = 1.0
    """Its share of the workers' time is this over the sum of those of all that wait for workers."""
    sessions: Total = 0
    """Now."""
    images: Total = 0
    batches: Total = 0
    worker_s: Seconds = 0.0
    """Workers' wall-clock time for its chunks, which is what jobs share."""


class FailureSnapshot(Struct, frozen=True, kw_only=True):
    """The batches of a dataset that could not be made."""

    dataset: Label
    batches: Total
    reason: Label
    """Of the last one, as in the counter ``batches_failed``; so is the message. It is "dataset"
    where the dataset cannot be opened, so that no batch of it is begun."""
    message: ShortText
    ago_s: Seconds
    """Now: since the last one."""
    is_last: bool
    """Now: whether no batch of the dataset was made since."""


class CacheSnapshot(Struct, frozen=True, kw_only=True):
    """The decoded cache; all zero without one."""

    budget_bytes: Total = 0
    used_bytes: Total = 0
    full_bytes: Total = 0
    """What all images of the served datasets would take in this node process."""
    hits: Total = 0
    misses: Total = 0
    fills: Total = 0
    moved_bytes: Total = 0
    """Pixels that were read from it or written to it."""


class NodeSnapshot(Struct, frozen=True, kw_only=True):
    """A node process."""

    number: Total
    name: ShortText
    pid: Total
    clock_s: Seconds
    """When it was taken, on the machine's monotonic clock."""
    uptime_s: Seconds
    endpoints: Annotated[tuple[ShortText, ...], Meta(max_length=16)]
    cpus: Label = ""
    """The CPUs that it and its workers may use, such as "0-15,64-79"."""
    workers: Annotated[tuple[WorkerSnapshot, ...], Meta(max_length=WORKERS_MAX)] = ()
    lost_worker_busy_s: Seconds = 0.0
    """``busy_s`` of workers that have ended."""
    clients: Annotated[tuple[ClientSnapshot, ...], Meta(max_length=CLIENTS_MAX + 1)] = ()
    """Those with open sessions."""
    jobs: Annotated[tuple[JobSnapshot, ...], Meta(max_length=JOBS_MAX + 1)] = ()
    images: Total = 0
    batches: Total = 0
    sent_bytes: Total = 0
    """Copied over sockets."""
    lent_bytes: Total = 0
    """Read by clients in place."""
    stages: Annotated[dict[Label, Seconds], Meta(max_length=32)] = {}
    """Seconds of all workers in each stage of the sample path."""
    decoded_bytes: Total = 0
    """Of decoded pixels that workers have written."""
    memory_bytes_a_s: Seconds = 0.0
    """The copy bandwidth of its CPUs, measured at its start: bytes read plus bytes written."""
    slots: SlotSeconds = SlotSeconds()
    queued_batches: Total = 0
    """Now: batches that wait for a worker or a slot."""
    chunks_in_flight: Total = 0
    """Now: chunks that workers have."""
    cache: CacheSnapshot = CacheSnapshot()
    stalled_datasets: Annotated[tuple[Label, ...], Meta(max_length=64)] = ()
    """Now: datasets whose storage does not answer."""
    failures: Annotated[tuple[FailureSnapshot, ...], Meta(max_length=64)] = ()
    """By dataset, the latest first."""
    silences: Total = 0
    """Times that a worker became silent."""
    workers_killed: Total = 0
    worker_restarts: Total = 0
    own_cpu_s: Seconds = 0.0
    """CPU time of the node process itself, with the threads of its sockets."""
    loop_cpu_s: Seconds = 0.0
    """The part of its event loop, which is one thread."""
    chunk_s: HistogramSnapshot | None = None
    """From a chunk's dispatch to its last row."""
    batch_s: HistogramSnapshot | None = None
    """From a batch's request to its last row."""
    counters: Annotated[
        dict[Label, int | float | Annotated[str, Meta(max_length=4096)]], Meta(max_length=4096)
    ] = {}
    """Everything else, by name (``feeder.metrics.counters``)."""
