"""The counters of a node process's parts, each counted in where it is declared for.

They are sent flat, by name, in ``NodeRecord.counters``. Every fallback and every drop has a
counter: nothing is dropped silently. Reasons have few values, all chosen by Feeder.
"""

import functools
from collections import Counter
from typing import Annotated, Final, TypeAlias

from msgspec import Struct, field

from feeder.metrics.fields import Field, counter, gauge

Reasons: TypeAlias = Counter[str]
"""Counts by reason."""


def _by(text: str, values: str, label: str = "reason") -> Field:
    return Field("counter", text, label=label, values=tuple(values.split()))


_ended: Final = functools.partial(
    counter,
    "Sessions that ended, by reason: closed by the client, expired in silence, or lost.",
    "sessions_ended",
    "reason",
)


class NodeStatus(Struct, kw_only=True):
    """What a node process is, and holds at the moment."""

    node: str = ""
    feeder_version: str = ""
    self_test: str = ""
    decoder: str = ""
    node_restarts: int = 0
    placement_warnings: Annotated[int, gauge("Warnings of the start about CPUs and memory.")] = 0
    library_warnings: Annotated[int, gauge("Warnings of the start about libraries.")] = 0
    library: dict[str, str] = {}
    """The version of each."""
    dataset: dict[str, str] = {}
    """The loss of each dataset that was packed with some, as ``NAME.loss``."""
    uptime_s: float = 0.0
    sessions: Annotated[int, gauge("Open sessions.")] = 0
    slots_committed_bytes: Annotated[int, gauge("Memory of the slots of open sessions.")] = 0
    slots_held_bytes: Annotated[int, gauge("Memory that clients of ended sessions still map.")] = 0
    slots_budget_bytes: Annotated[int, gauge("Memory that slots may take.")] = 0
    cache_entries: Annotated[int, gauge("Images and rows in the decoded cache.")] = 0
    cache_used_bytes: int = 0
    cache_budget_bytes: int = 0
    datasets_failed: Annotated[
        int, gauge("Datasets that could not be opened when the node process restarted.")
    ] = 0
    datasets_stalled: Annotated[int, gauge("Datasets whose storage does not answer.")] = 0
    workers: int = 0


class SessionCounters(Struct, kw_only=True):
    """Counters of the session state machine."""

    sessions_opened: Annotated[int, counter("Sessions that clients opened.")] = 0
    sessions_closed: Annotated[int, _ended("closed")] = 0
    """Ended by Bye, by release of their mapped slots, or replaced by another Hello."""
    sessions_expired: Annotated[int, _ended("expired")] = 0
    """Ended because their client was silent for the whole lease."""
    sessions_lost: Annotated[int, _ended("lost")] = 0
    """Ended because a send found their connection gone or full, or because the client that mapped
    their slots died."""
    windows_reduced: Annotated[
        int, counter("Sessions that got a smaller window than they requested.")
    ] = 0
    sessions_sharing: Annotated[
        int,
        counter("Sessions whose client maps the slots; the others get copies.", "sessions_lent"),
    ] = 0
    batches_lent: Annotated[int, counter("Batches that clients read in place.")] = 0
    chunks: Annotated[int, counter("Chunks delivered.")] = 0
    fallbacks: Annotated[
        Reasons,
        _by(
            "Images decoded and batches sent in the slower way, by reason.",
            "copied-refused copied-tcp copied-unclaimed turbojpeg",
        ),
    ] = field(default_factory=Counter)
    """Batches copied to clients of this machine, which could read them in place, by reason:
    copied-tcp (they connect over tcp), copied-unclaimed (over ipc, without claiming the slots),
    copied-refused (the claim could not be granted). WorkerCounters has turbojpeg."""
    batches_released: Annotated[int, counter("Batches that clients gave back.")] = 0
    batches_failed: Annotated[
        Reasons,
        _by(
            "Batches that could not be made, by reason.",
            "bad-sample resource stalled-storage unreadable worker-died",
        ),
    ] = field(default_factory=Counter)
    """Unreadable: a shard or a manifest; resource: memory or descriptors."""
    bad_samples: Annotated[int, counter("Different samples that were found damaged.")] = 0
    """Up to BAD_SAMPLES_MAX of feeder.session.failures. A worker gives up a chunk at the first of
    its bad samples."""
    chunks_returned: Annotated[int, counter("Chunks done again because their worker died.")] = 0
    wants_repeated: Annotated[
        int, counter("Batches requested again while they were in flight.")
    ] = 0
    refused: Annotated[
        Reasons,
        _by(
            "Requests that were refused, by code.",
            "clients memory rate recipes version window",
            label="code",
        ),
    ] = field(default_factory=Counter)


class SocketCounters(Struct, kw_only=True):
    """Counters of the node process's socket."""

    bytes_sent: int = 0
    """Bytes of pixels, labels and sample ids handed to the socket."""
    frames_dropped: Annotated[
        Reasons,
        _by(
            "Messages of clients that were dropped, by reason.",
            "bad-recipe malformed over-rate several-frames version",
        ),
    ] = field(default_factory=Counter)
    sends_dropped: Annotated[
        int, counter("Messages to clients whose connection was gone or full.")
    ] = 0
    connections_opened: Annotated[int, counter("Connections of clients.")] = 0
    connections_closed: Annotated[int, counter("Connections that have ended.")] = 0
    """Includes those that libzmq closed because of a frame above the limit, unread."""
    handshakes_failed: Annotated[
        int, counter("Connections that did not speak the protocol, or with other security.")
    ] = 0
    """Not ZMTP, or with another security mechanism."""
    clients_refused: Annotated[
        Reasons,
        _by(
            "Connections over tcp that were refused because of their keys, by reason.",
            "malformed mechanism no-list server-key unknown-key",
        ),
    ] = field(default_factory=Counter)
    """Server-key: they expected another feeder; mechanism: they came without keys; no-list: there
    is no list of client keys."""
    connections_cut: Annotated[
        Reasons,
        _by("Connections closed for misuse, by reason.", "endless-message too-many"),
    ] = field(default_factory=Counter)


class ClaimCounters(Struct, kw_only=True):
    """Counters of the claim listener, where clients claim slots to map."""

    claims_refused: Annotated[
        int, counter("Claims of slots that were refused: their clients get copies.")
    ] = 0
    shares_failed: Annotated[
        int, counter("Of those, the ones for which no descriptor could be opened.")
    ] = 0


class WorkerCounters(Struct, kw_only=True):
    """Counters of a node process's workers, besides those of NodeRecord."""

    workers_held: Annotated[int, gauge("Killed workers that the kernel holds in a read.")] = 0
    worker_starts_failed: Annotated[int, counter("Workers that died while starting.")] = 0
    worker_pause_s: Annotated[
        float, gauge("Backoff before the last dead worker is replaced.", "worker_pause_seconds")
    ] = 0.0
    fallbacks: Reasons = field(default_factory=Counter)
    """turbojpeg: images that Feeder's own decoder left to TurboJPEG."""


class LogCounters(Struct, kw_only=True):
    """Counters of the log."""

    log_lines_dropped: Annotated[
        int, counter("Log lines that were dropped because nothing read them.")
    ] = 0
    log_lines_limited: Annotated[
        int, counter("Log lines that were suppressed because they repeated.")
    ] = 0


GROUPS: Final = (
    NodeStatus, SessionCounters, SocketCounters, ClaimCounters, WorkerCounters, LogCounters
)  # fmt: skip
"""All that ``NodeRecord.counters`` has besides the rows of NodeRecord itself."""
