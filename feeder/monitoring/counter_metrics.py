"""Which metric each counter of a node process becomes.

The counters are those of ``feeder.metrics.counters``; a test compares the two. Their reasons have
few values, all chosen by Feeder. The usual ones are there from the start, at 0, because an increase
of a series that was absent before does not count as one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CounterMetric:
    """The metric of a counter, without the prefix ``feeder_`` and the suffix ``_total``."""

    name: str
    help: str
    label: str = ""
    """Set for counters by reason, and for several counters that are one metric."""
    value: str = ""
    """The label's value where the counter is one of several of its metric."""
    known: tuple[str, ...] = ()
    """Reasons that are there from the start."""
    is_gauge: bool = False


_ENDED: Final = "Sessions that ended, by reason: closed by the client, expired in silence, or lost."

COUNTERS: Final[Mapping[str, CounterMetric]] = {
    "sessions_opened": CounterMetric("sessions_opened", "Sessions that clients opened."),
    "sessions_closed": CounterMetric("sessions_ended", _ENDED, "reason", "closed"),
    "sessions_expired": CounterMetric("sessions_ended", _ENDED, "reason", "expired"),
    "sessions_lost": CounterMetric("sessions_ended", _ENDED, "reason", "lost"),
    "windows_reduced": CounterMetric(
        "windows_reduced", "Sessions that got a smaller window than they requested."
    ),
    "sessions_sharing": CounterMetric(
        "sessions_lent", "Sessions whose client maps the slots; the others get copies."
    ),
    "batches_lent": CounterMetric("batches_lent", "Batches that clients read in place."),
    "fallbacks": CounterMetric(
        "fallbacks",
        "Images decoded and batches sent in the slower way, by reason.",
        "reason",
        known=("copied-refused", "copied-tcp", "copied-unclaimed", "turbojpeg"),
    ),
    "chunks": CounterMetric("chunks", "Chunks delivered."),
    "batches_released": CounterMetric("batches_released", "Batches that clients gave back."),
    "batches_failed": CounterMetric(
        "batches_failed",
        "Batches that could not be made, by reason.",
        "reason",
        known=("bad-sample", "resource", "stalled-storage", "unreadable", "worker-died"),
    ),
    "bad_samples": CounterMetric("bad_samples", "Different samples that were found damaged."),
    "chunks_returned": CounterMetric(
        "chunks_returned", "Chunks done again because their worker died."
    ),
    "wants_repeated": CounterMetric(
        "wants_repeated", "Batches requested again while they were in flight."
    ),
    "refused": CounterMetric(
        "refused",
        "Requests that were refused, by code.",
        "code",
        known=("clients", "memory", "rate", "recipes", "version", "window"),
    ),
    "frames_dropped": CounterMetric(
        "frames_dropped",
        "Messages of clients that were dropped, by reason.",
        "reason",
        known=("bad-recipe", "malformed", "over-rate", "several-frames", "version"),
    ),
    "sends_dropped": CounterMetric(
        "sends_dropped", "Messages to clients whose connection was gone or full."
    ),
    "connections_opened": CounterMetric("connections_opened", "Connections of clients."),
    "connections_closed": CounterMetric("connections_closed", "Connections that have ended."),
    "handshakes_failed": CounterMetric(
        "handshakes_failed", "Connections that did not speak the protocol, or with other security."
    ),
    "clients_refused": CounterMetric(
        "clients_refused",
        "Connections over tcp that were refused because of their keys, by reason.",
        "reason",
        known=("malformed", "mechanism", "no-list", "server-key", "unknown-key"),
    ),
    "connections_cut": CounterMetric(
        "connections_cut",
        "Connections closed for misuse, by reason.",
        "reason",
        known=("endless-message", "too-many"),
    ),
    "claims_refused": CounterMetric(
        "claims_refused", "Claims of slots that were refused: their clients get copies."
    ),
    "shares_failed": CounterMetric(
        "shares_failed", "Of those, the ones for which no descriptor could be opened."
    ),
    "workers_held": CounterMetric(
        "workers_held", "Killed workers that the kernel holds in a read.", is_gauge=True
    ),
    "worker_starts_failed": CounterMetric(
        "worker_starts_failed", "Workers that died while starting."
    ),
    "worker_pause_s": CounterMetric(
        "worker_pause_seconds", "Backoff before the last dead worker is replaced.", is_gauge=True
    ),
    "log_lines_dropped": CounterMetric(
        "log_lines_dropped", "Log lines that were dropped because nothing read them."
    ),
    "log_lines_limited": CounterMetric(
        "log_lines_limited", "Log lines that were suppressed because they repeated."
    ),
    "datasets_failed": CounterMetric(
        "datasets_failed",
        "Datasets that could not be opened when the node process restarted.",
        is_gauge=True,
    ),
    "datasets_stalled": CounterMetric(
        "datasets_stalled", "Datasets whose storage does not answer.", is_gauge=True
    ),
    "library_warnings": CounterMetric(
        "library_warnings", "Warnings of the start about libraries.", is_gauge=True
    ),
    "placement_warnings": CounterMetric(
        "placement_warnings", "Warnings of the start about CPUs and memory.", is_gauge=True
    ),
    "cache_entries": CounterMetric(
        "cache_entries", "Images and rows in the decoded cache.", is_gauge=True
    ),
    "sessions": CounterMetric("sessions", "Open sessions.", is_gauge=True),
    "slots_committed_bytes": CounterMetric(
        "slots_committed_bytes", "Memory of the slots of open sessions.", is_gauge=True
    ),
    "slots_held_bytes": CounterMetric(
        "slots_held_bytes", "Memory that clients of ended sessions still map.", is_gauge=True
    ),
    "slots_budget_bytes": CounterMetric(
        "slots_budget_bytes", "Memory that slots may take.", is_gauge=True
    ),
}
"""By name in ``NodeRecord.counters``, without the reason."""

LEFT_OUT: Final[Mapping[str, str]] = {
    "batches": "feeder_batches_total, from the snapshot",
    "images": "feeder_images_total, from the snapshot",
    "bytes_sent": "feeder_sent_bytes_total, from the snapshot",
    "stage_seconds": "feeder_stage_seconds_total, from the snapshot",
    "cache": "feeder_cache_hits_total, _misses_, _fills_ and _moved_bytes_total, from the snapshot",
    "worker_restarts": "feeder_worker_restarts_total, from the snapshot",
    "worker_silences": "feeder_worker_silences_total, from the snapshot",
    "workers_killed": "feeder_workers_killed_total, from the snapshot",
    "cache_used_bytes": "feeder_cache_used_bytes, from the snapshot",
    "cache_budget_bytes": "feeder_cache_budget_bytes, from the snapshot",
    "uptime_s": "feeder_node_uptime_seconds, from the snapshot",
    "workers": "feeder_workers, from the snapshot",
    "node_restarts": "feeder_node_restarts_total, from the report",
    "feeder_version": "feeder_build_info, from the report",
    "node": "a text",
    "self_test": "a text",
    "decoder": "a text",
    "library": "a text",
    "dataset": "a text",
}
"""What a node process counts without a metric of its own here, and why."""
