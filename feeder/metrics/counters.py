"""The counters of a node process's parts, which are sent flat, by name, in ``NodeRecord.counters``.

Every fallback and every drop has a counter: nothing is dropped silently. Reasons have few values,
all chosen by Feeder.
"""

import functools
from collections import Counter
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from feeder.metrics.fields import counter, gauge, seconds, trouble

Reasons: TypeAlias = Counter[str]
"""Counts by reason."""


def _by(text: str, values: str, label: str = "reason", *, is_trouble: bool = True) -> Any:
    words = tuple(values.split())
    return counter(text, label=label, values=words, start=Counter, is_trouble=is_trouble)


_ended: Final = functools.partial(
    counter,
    "Sessions that ended, by reason: closed by the client, expired in silence, or lost.",
    "sessions_ended",
    "reason",
)


class NodeStatus(Struct, kw_only=True):
    node: str = ""
    feeder_version: str = ""
    self_test: str = ""
    decoder: str = ""
    node_restarts: int = 0
    placement_warnings: int = gauge("Warnings of the start about CPUs and memory.")
    library_warnings: int = gauge("Warnings of the start about libraries.")
    library: dict[str, str] = {}  # versions
    dataset: dict[str, str] = {}
    """The loss of each dataset that was packed with some, as ``NAME.loss``."""
    uptime_s: float = 0.0
    sessions: int = gauge("Open sessions.")
    slots_committed_bytes: int = gauge("Memory of the slots of open sessions.")
    slots_held_bytes: int = gauge("Memory that clients of ended sessions still map.")
    slots_budget_bytes: int = gauge("Memory that slots may take.")
    cache_entries: int = gauge("Images and rows in the decoded cache.")
    cache_used_bytes: int = 0
    cache_budget_bytes: int = 0
    datasets_failed: int = gauge(
        "Datasets that could not be opened when the node process restarted.", is_trouble=True
    )
    datasets_stalled: int = gauge("Datasets whose storage does not answer.", is_trouble=True)
    workers: int = 0


class SessionCounters(Struct, kw_only=True):
    sessions_opened: int = counter("Sessions that clients opened.")
    sessions_closed: int = _ended("closed")
    """Ended by Bye, by release of their mapped slots, or replaced by another Hello."""
    sessions_expired: int = _ended("expired", is_trouble=True)
    """Ended because their client was silent for the whole lease."""
    sessions_lost: int = _ended("lost", is_trouble=True)
    """A send found their connection gone or full, or the client that mapped their slots died."""
    windows_reduced: int = trouble("Sessions that got a smaller window than they requested.")
    sessions_sharing: int = counter(
        "Sessions whose client maps the slots; the others get copies.", "sessions_lent"
    )
    batches_lent: int = counter("Batches that clients read in place.")
    chunks: int = counter("Chunks delivered.")
    fallbacks: Reasons = _by(
        "Images decoded and batches sent in the slower way, by reason.",
        "copied-refused copied-tcp copied-unclaimed turbojpeg",
        is_trouble=False,
    )
    """Batches copied to clients of this machine, which could read them in place, by reason:
    copied-tcp (they connect over tcp), copied-unclaimed (over ipc, without claiming the slots),
    copied-refused (the claim could not be granted). WorkerCounters has turbojpeg."""
    batches_released: int = counter("Batches that clients gave back.")
    batches_failed: Reasons = _by(
        "Batches that could not be made, by reason.",
        "bad-sample resource stalled-storage store unreadable worker-died",
    )
    """Unreadable: a shard or a manifest; resource: memory or descriptors."""
    bad_samples: int = trouble("Different samples that were found damaged.")
    """Up to BAD_SAMPLES_MAX. A worker gives up a chunk at the first of its bad samples."""
    chunks_returned: int = trouble("Chunks done again because their worker died.")
    wants_repeated: int = trouble("Batches requested again while they were in flight.")
    refused: Reasons = _by(
        "Requests that were refused, by code.", "clients memory rate recipes version window", "code"
    )


class SocketCounters(Struct, kw_only=True):
    bytes_sent: int = 0  # of pixels, labels and sample ids handed to the socket
    frames_dropped: Reasons = _by(
        "Messages of clients that were dropped, by reason.",
        "bad-recipe malformed over-rate several-frames version",
    )
    sends_dropped: int = trouble("Messages to clients whose connection was gone or full.")
    connections_opened: int = counter("Connections of clients.")
    connections_closed: int = counter("Connections that have ended.")
    """Includes those that libzmq closed because of a frame above the limit, unread."""
    handshakes_failed: int = trouble(
        "Connections that did not speak the protocol, or with other security."
    )
    clients_refused: Reasons = _by(
        "Connections over tcp that were refused because of their keys, by reason.",
        "malformed mechanism no-list server-key unknown-key",
    )
    """Server-key: they expected another feeder; mechanism: they came without keys; no-list: there
    is no list of client keys."""
    connections_cut: Reasons = _by(
        "Connections closed for misuse, by reason.", "endless-message too-many"
    )


class ClaimCounters(Struct, kw_only=True):
    claims_refused: int = trouble("Claims of slots that were refused: their clients get copies.")
    shares_failed: int = trouble("Of those, the ones for which no descriptor could be opened.")


class WorkerCounters(Struct, kw_only=True):
    workers_held: int = gauge("Killed workers that the kernel holds in a read.", is_trouble=True)
    worker_starts_failed: int = trouble("Workers that died while starting.")
    worker_pause_s: float = gauge("Backoff before the last dead worker is replaced.", start=0.0)
    fallbacks: Reasons = field(default_factory=Counter)
    """turbojpeg: images that Feeder's own decoder left to TurboJPEG."""


class CopyCounters(Struct, kw_only=True):
    blobs_sent: int = counter("Samples sent to other feeders, as packed.")
    blobs_sent_bytes: int = counter("Bytes of samples sent to other feeders.")
    blobs_missed: int = counter("Samples that other feeders requested and that were not here.")
    blobs_refused: int = counter(
        "Requests of other feeders refused, as reading for them had its share of the workers' time."
    )
    blobs_read_s: float = seconds("Time of workers in reading for other feeders.")


class LogCounters(Struct, kw_only=True):
    log_lines_dropped: int = trouble("Log lines that were dropped because nothing read them.")
    log_lines_limited: int = trouble("Log lines that were suppressed because they repeated.")


GROUPS: Final = (
    NodeStatus, SessionCounters, SocketCounters, ClaimCounters, WorkerCounters, CopyCounters,
    LogCounters
)  # fmt: skip
"""All that ``NodeRecord.counters`` has besides the rows of NodeRecord itself."""
