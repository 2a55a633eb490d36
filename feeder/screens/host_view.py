"""A host's report as its screens show it: the interval's rates, and clients of all node processes.

A client that is fed by several node processes has a row at each in the report, and one here.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from feeder.diagnosis.client_interval import ClientInterval
from feeder.diagnosis.interval import HostInterval, NodeInterval
from feeder.diagnosis.worker_interval import WorkerInterval
from feeder.metrics.records import OTHERS, SlotSeconds
from feeder.metrics.report import HostReport, NodeReport

_TROUBLE: Final = (
    *("sessions_expired", "sessions_lost", "windows_reduced", "batches_failed", "chunks_returned"),
    *("bad_samples", "wants_repeated", "refused", "frames_dropped", "sends_dropped"),
    *("handshakes_failed", "clients_refused", "connections_cut", "claims_refused"),
    *("shares_failed", "workers_held", "worker_starts_failed", "datasets_stalled"),
    *("datasets_failed", "log_lines_dropped", "log_lines_limited"),
)
"""Counters that are zero while all is well, without the reason that may follow."""


_SNAPSHOT_TROUBLE: Final = ("worker_restarts", "workers_killed", "silences")
"""The same, as fields of a snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """A client, over all node processes that feed it."""

    name: str
    dataset: str
    job: str
    nodes: int
    images_a_s: float
    lent_share: float
    """Of its images: read in place."""
    bytes_a_s: float
    """Copied over sockets."""
    wait_share: float | None
    """Of its time, for all of them; None where it has reported to none."""
    cpus: float
    window: int
    wanted: int


class HostView:
    """A report and its interval, merged for display."""

    def __init__(self, report: HostReport) -> None:
        """Computes the rates of ``report``."""
        self.report = report
        self.interval = HostInterval.of(report)

    @cached_property
    def clients(self) -> tuple[ClientRow, ...]:
        """All clients, those with the most images first, the summed-up ones last."""
        groups: dict[tuple[str, str, str], list[ClientInterval]] = {}
        for client in self.interval.clients:
            key = (client.account, client.name, client.dataset)
            groups.setdefault(key, []).append(client)
        rows = [_client_row(group) for group in groups.values()]
        return tuple(sorted(rows, key=lambda row: (row.name == OTHERS, -row.images_a_s, row.name)))

    @cached_property
    def workers(self) -> tuple[tuple[NodeInterval, WorkerInterval], ...]:
        """All workers with their node process, silent ones first."""
        pairs = [(node, worker) for node in self.interval.nodes for worker in node.workers]
        return tuple(sorted(pairs, key=lambda pair: pair[1].state != "silent"))

    @cached_property
    def silent_workers(self) -> tuple[tuple[NodeInterval, WorkerInterval], ...]:
        """The silent ones of them."""
        return tuple(pair for pair in self.workers if pair[1].state == "silent")

    @property
    def nodes(self) -> tuple[tuple[NodeReport, NodeInterval | None], ...]:
        """All node processes, with their rates where there are two snapshots."""
        intervals = {node.number: node for node in self.interval.nodes}
        return tuple((node, intervals.get(node.number)) for node in self.report.nodes)

    @property
    def has_node_list(self) -> bool:
        """Whether its node processes are worth a list: several, or one that is not ready."""
        return [node.state for node in self.report.nodes] != ["ready"]

    @property
    def sent_bytes_a_s(self) -> float:
        """Copied over sockets."""
        return sum(node.sent_bytes_a_s for node in self.interval.nodes)

    @property
    def lent_bytes_a_s(self) -> float:
        """Read by clients in place."""
        return sum(node.lent_bytes_a_s for node in self.interval.nodes)

    @property
    def slots(self) -> SlotSeconds:
        """Mean number of slots in each state."""
        each = [node.slots for node in self.interval.nodes]
        return SlotSeconds(
            free=sum(slots.free for slots in each),
            filling=sum(slots.filling for slots in each),
            sending=sum(slots.sending for slots in each),
            client=sum(slots.client for slots in each),
        )

    @property
    def page_cache_share(self) -> float | None:
        """Share of the bytes read that storage did not have to deliver; None where none were."""
        requested = sum(node.requested_bytes_a_s for node in self.interval.nodes)
        storage = sum(node.storage_bytes_a_s for node in self.interval.nodes)
        return max(0.0, 1.0 - storage / requested) if requested > 0 else None

    @property
    def cache_hit_share(self) -> float | None:
        """Share of the decoded cache's look-ups; None without any. By images of node processes."""
        pairs = [
            (node.images_a_s, node.cache_hit_share)
            for node in self.interval.nodes
            if node.cache_hit_share is not None
        ]
        total = sum(images for images, _ in pairs)
        return sum(images * share for images, share in pairs) / total if total else None

    @property
    def cache_bytes(self) -> tuple[int, int, int]:
        """Bytes of the decoded caches: used, their budget, and what all images would take."""
        caches = [node.now.cache for node in self.report.nodes if node.now is not None]
        return (
            sum(cache.used_bytes for cache in caches),
            sum(cache.budget_bytes for cache in caches),
            sum(cache.full_bytes for cache in caches),
        )

    @cached_property
    def fallbacks(self) -> dict[str, int]:
        """Images and batches that took the slower way since the start, by reason, without zeros."""
        totals: Counter[str] = Counter()
        for node in self.report.nodes:
            for name, value in {} if node.now is None else node.now.counters.items():
                group, _, reason = name.partition(".")
                if group == "fallbacks" and isinstance(value, int):
                    totals[reason] += value
        return {reason: total for reason, total in totals.items() if total}

    @cached_property
    def troubles(self) -> dict[str, int]:
        """Counters since the node processes started that are zero while all is well."""
        report = self.report
        totals = Counter(
            log_lines_dropped=report.log_lines_dropped, log_lines_limited=report.log_lines_limited
        )
        for node in report.nodes:
            totals["node_restarts"] += node.restarts
            if node.now is None:
                continue
            for name in _SNAPSHOT_TROUBLE:
                totals[name] += getattr(node.now, name)
            for name, value in node.now.counters.items():
                if name.partition(".")[0] in _TROUBLE and isinstance(value, int):
                    totals[name] += value
        return {name: total for name, total in totals.items() if total}


def _client_row(group: list[ClientInterval]) -> ClientRow:
    images = sum(client.images_a_s for client in group)
    waits = [client.wait_share for client in group if client.wait_share is not None]
    lent = sum(client.images_a_s for client in group if client.is_lent)
    return ClientRow(
        name=group[0].name,
        dataset=group[0].dataset,
        job=group[0].job,
        nodes=len(group),
        images_a_s=images,
        lent_share=lent / images if images else float(all(client.is_lent for client in group)),
        bytes_a_s=sum(client.bytes_a_s for client in group),
        wait_share=min(1.0, sum(waits)) if waits else None,
        cpus=max(
            client.cpus for client in group
        ),  # of one process, as each node process reports it
        window=sum(client.window for client in group),
        wanted=sum(client.wanted for client in group),
    )
