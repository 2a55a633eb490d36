"""The counters of a node process: plain integers, incremented in place and read on request.

Counters only grow while a node process runs, and start at zero when it restarts. Every fallback and
every drop has a counter here: nothing is dropped silently.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

Counters = dict[str, int | float | str]


@dataclass(slots=True, kw_only=True)
class SessionCounters:
    """Counters of the session state machine."""

    sessions_opened: int = 0
    sessions_closed: int = 0
    """Ended by Bye, by release of their mapped slots, or replaced by another Hello."""
    sessions_expired: int = 0
    """Ended because their client was silent for the whole lease."""
    sessions_lost: int = 0
    """Ended because a send found their connection gone or full, or because the client that mapped
    their slots died."""
    windows_reduced: int = 0
    """Sessions that got a smaller window than they requested."""
    sessions_sharing: int = 0
    """Sessions whose client mapped the slots; the others get copies over the socket."""
    batches: int = 0
    """Batches delivered whole: lent in place, or every chunk sent."""
    batches_lent: int = 0
    """Of those, the ones lent in place."""
    chunks: int = 0
    images: int = 0
    """Real samples sent, without padding."""
    fallbacks: dict[str, int] = field(default_factory=dict)
    """Batches copied to clients of this machine, which could read them in place, by reason:
    copied-tcp (they connect over tcp), copied-unclaimed (over ipc, without claiming the slots),
    copied-refused (the claim could not be granted). WorkerCounters has the others."""
    batches_released: int = 0
    batches_failed: dict[str, int] = field(default_factory=dict)
    """Batches that could not be made, by reason: bad-sample, unreadable (a shard or a manifest),
    stalled-storage, resource (memory or descriptors), worker-died."""
    bad_samples: int = 0
    """Different samples that were found damaged, up to BAD_SAMPLES_MAX of feeder.session.failures.
    A worker gives up a chunk at the first of its bad samples."""
    chunks_returned: int = 0
    """Chunks reassigned because their worker died."""
    worker_silences: int = 0
    """Times that a worker with a chunk made no progress for seconds."""
    wants_repeated: int = 0
    """Batches requested again while they were in flight."""
    refused: dict[str, int] = field(default_factory=dict)
    """Refusals by code."""


@dataclass(slots=True, kw_only=True)
class SocketCounters:
    """Counters of the node process's socket."""

    bytes_sent: int = 0
    """Bytes of pixels, labels and sample ids handed to the socket."""
    frames_dropped: dict[str, int] = field(default_factory=dict)
    """Messages that were dropped, by reason: malformed, version, bad-recipe, several-frames,
    over-rate."""
    sends_dropped: int = 0
    """Small messages whose peer had no connection, or no room in its queue."""
    connections_opened: int = 0
    connections_closed: int = 0
    """Includes those that libzmq closed because of a frame above the limit, unread."""
    handshakes_failed: int = 0
    """Connections that did not speak ZMTP, or used another security mechanism."""
    clients_refused: dict[str, int] = field(default_factory=dict)
    """Connections over tcp that were refused, by reason: unknown-key, server-key (they expected
    another feeder), mechanism (they came without keys), no-list (of client keys), malformed."""
    connections_cut: dict[str, int] = field(default_factory=dict)
    """Connections that were closed for misuse, by reason: too-many, endless-message."""

    def drop(self, reason: str) -> None:
        """Count a dropped message."""
        self.frames_dropped[reason] = self.frames_dropped.get(reason, 0) + 1

    def refuse_client(self, reason: str) -> None:
        """Count a refused connection."""
        self.clients_refused[reason] = self.clients_refused.get(reason, 0) + 1

    def cut(self, reason: str) -> None:
        """Count a connection that is closed for misuse."""
        self.connections_cut[reason] = self.connections_cut.get(reason, 0) + 1


@dataclass(slots=True, kw_only=True)
class ClaimCounters:
    """Counters of the claim listener, where clients claim slots to map."""

    claims_refused: int = 0
    """Claims of slots that were refused: the client then gets copies."""
    shares_failed: int = 0
    """Of those, the ones for which no read-only descriptor could be opened."""


@dataclass(slots=True, kw_only=True)
class WorkerCounters:
    """Counters of a node process's workers."""

    worker_restarts: int = 0
    """Workers that died and were replaced."""
    workers_killed: int = 0
    """Of those, the ones killed because they made no progress."""
    workers_held: int = 0
    """Gauge: killed workers that have not ended, because the kernel waits for their read."""
    worker_starts_failed: int = 0
    """Workers that died while starting."""
    worker_pause_s: float = 0.0
    """Gauge: exponential backoff before the last dead worker is replaced."""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of all workers in each stage of the sample path."""
    fallbacks: dict[str, int] = field(default_factory=dict)
    """turbojpeg: images that Feeder's own decoder left to TurboJPEG."""
    cache: dict[str, int] = field(default_factory=dict)
    """Of the decoded cache: hits, misses, entries that were filled, bytes read and written."""


@dataclass(slots=True, kw_only=True)
class LogCounters:
    """Counters of the log."""

    log_lines_dropped: int = 0
    """Log lines of the node process that were dropped because stderr was not read."""
    log_lines_limited: int = 0
    """Log lines of the node process that were suppressed because they repeated."""


CounterGroup = LogCounters | SessionCounters | SocketCounters | ClaimCounters | WorkerCounters


def flatten(groups: Iterable[CounterGroup]) -> Counters:
    """Return all counters by name; those kept by reason or stage are named ``name.reason``."""
    counters: Counters = {}
    for group in groups:
        for name in group.__dataclass_fields__:
            value = getattr(group, name)
            if isinstance(value, dict):
                counters.update({f"{name}.{key}": count for key, count in sorted(value.items())})
            else:
                counters[name] = value
    return counters


def format_counters(counters: Counters) -> str:
    """Return the counters as text, one a line, in two aligned columns."""
    width = max(map(len, counters), default=0)
    return "\n".join(f"{name:<{width}}  {_format(value)}" for name, value in counters.items())


def _format(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
