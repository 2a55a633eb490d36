"""Which open batch is requested from which node, and when it is hedged or retried.

A batch is requested from its lane's owner, or from the next node in the lane's order that has room.
No node has more than its even share of a client's requests: owners own unequal numbers of lanes,
and a window that waits for one node leaves the others idle (after Mirrokni, Thorup and
Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018; as batches are consumed in order, any
slack costs throughput). It is requested from the next node as well when

    the node has gone quiet         a ping was not answered
    the batch is late               by the latencies so far (``HedgeDelay``); HEDGES_MAX at once
    the node cannot make it         a disk error, say: another node holds the same data
    the session was lost            with the connection, or because the node has restarted

and again from the same node when that sends messages but has not answered for RETRY_S: then the
request, or the answer, was lost.
"""

import math
from collections import deque
from collections.abc import Iterator, KeysView, Mapping
from typing import Final

from msgspec import Struct

from feeder.client.core.node_link import LinkState
from feeder.client.core.prefetch import Assembly, BatchRequest, Prefetch
from feeder.client.core.rendezvous import LaneKeys, rank_nodes
from feeder.wire.messages import BatchKey

HEDGES_MAX: Final = 2
"""Late batches at once that two nodes make: double work does not help a slow fleet."""

RETRY_S: Final = 40.0
"""Longer than a node waits for a worker that hangs (``feeder.session.silence``)."""

_LATENCIES_MAX: Final = 128
_LATENCIES_MIN: Final = 16
_FIRST_DELAY_S: Final = 2.0
"""Before any latency is known: the first batch waits for cold files and the dataset's opening."""

_MARGIN: Final = 1.5
_DELAY_MIN_S: Final = 0.1


class Want(Struct, frozen=True):
    """Request an open batch on a link, after releasing the lent batch ``reclaim`` there."""

    link: int
    key: BatchKey
    reclaim: BatchKey | None = None


class GiveUp(Struct, frozen=True):
    """Settle a batch as failed: no node can make it."""

    key: BatchKey


class RequestScheduler:
    """Chooses the node for each request; ``due_s`` is when to choose again without an event."""

    def __init__(self, prefetch: Prefetch, lanes: LaneKeys) -> None:
        self.retried = 0  # batches of a lost or failing node
        self.hedged = 0  # batches that were late, or their node quiet
        self.due_s = float("inf")
        self._prefetch = prefetch
        self._lanes = lanes
        self._hedge_delay = HedgeDelay()

    def on_complete(self, request: BatchRequest, now_s: float) -> None:
        """Record the latency of a request."""
        self._hedge_delay.record(now_s - request.requested_s)

    def choose(self, links: Mapping[int, LinkState], now_s: float) -> Iterator[Want | GiveUp]:
        """Yield a decision for each open batch that needs one.

        The caller applies each before it takes the next, and sends the requests at the end.
        """
        self.due_s = float("inf")
        open_batches = list(self._prefetch.open_batches())
        hedges = len([None for _, assembly in open_batches if len(assembly.requests) > 1])
        candidates = _Candidates(links, self._prefetch, self._lanes, now_s)
        for key, assembly in open_batches:
            if assembly.requests:
                is_hedge = hedges < HEDGES_MAX and len(assembly.requests) == 1
                want = self._choose_another(key, assembly, links, candidates, now_s, is_hedge)
                hedges += want is not None and is_hedge
            else:
                want = candidates.choose(key, is_overdue=assembly.was_requested)
                self.retried += want is not None and assembly.was_requested
                if want is None and _has_failed_everywhere(assembly, links):
                    yield GiveUp(key)
            if want is not None:
                yield want

    def _choose_another(
        self,
        key: BatchKey,
        assembly: Assembly,
        links: Mapping[int, LinkState],
        candidates: "_Candidates",
        now_s: float,
        is_hedge: bool,
    ) -> Want | None:
        """Return another request for a batch in flight, or set when one may be due.

        ``is_hedge`` is whether a second node may be asked because the batch is late.
        """
        requested_s = max([request.requested_s for request in assembly.requests.values()])
        if candidates.are_beyond(assembly.requests.keys()):
            overdue_s = max(links[number].quiet_at_s for number in assembly.requests)
            if is_hedge:
                overdue_s = min(overdue_s, requested_s + self._hedge_delay.delay_s)
            if now_s < overdue_s:
                self.due_s = min(self.due_s, overdue_s)
            elif want := candidates.choose(key, is_overdue=True, is_answering=True):
                self.hedged += 1
                return want
        if now_s < requested_s + RETRY_S:
            self.due_s = min(self.due_s, requested_s + RETRY_S)
            return None
        return next((Want(n, key) for n in assembly.requests if candidates.is_answering(n)), None)


class _Candidates:
    """The links that can be asked now, and how many more batches each accepts."""

    def __init__(
        self,
        links: Mapping[int, LinkState],
        prefetch: Prefetch,
        lanes: LaneKeys,
        now_s: float,
    ) -> None:
        self._prefetch = prefetch
        self._lanes = lanes
        self._served = {number: link for number, link in links.items() if link.is_served}
        self._answering = {n for n, link in self._served.items() if link.quiet_at_s > now_s}
        self._free_window: dict[int, int] = {}  # counted at its first choice
        self._share = math.ceil(prefetch.buffers / max(1, len(self._served)))

    def are_beyond(self, links: KeysView[int]) -> bool:
        """Whether a node serves this client over none of these links."""
        return not self._served.keys() <= links

    def is_answering(self, link: int) -> bool:
        """Whether a link can be asked and is not quiet."""
        return link in self._answering

    def choose(self, key: BatchKey, *, is_overdue: bool, is_answering: bool = False) -> Want | None:
        """Return a request, deducted from its node's free window; quiet nodes last, or not at all.

        An overdue batch may exceed a node's share, and if its window is full, reclaim the slot of a
        later batch: otherwise all nodes could be full of batches that come after this one.
        """
        able = self._find_able(key, is_answering)
        for number in able:
            window = self._served[number].window
            if number not in self._free_window:
                self._free_window[number] = window - self._prefetch.load(number)
            if self._free_window[number] > (0 if is_overdue else max(0, window - self._share)):
                self._free_window[number] -= 1
                return Want(number, key)
        for number in able if is_overdue else ():
            reclaim = self._prefetch.find_reclaimable(number, key)
            if reclaim is not None:
                return Want(number, key, reclaim)
        return None

    def _find_able(self, key: BatchKey, is_answering: bool) -> list[int]:
        """Return the links of all nodes that can make a batch, in the order of preference."""
        links = self._answering if is_answering else self._served
        able = [n for n in links if self._prefetch.can_request(n, key)]
        if len(able) > 1:
            names = [(self._served[number].node_name, number) for number in able]
            able = rank_nodes(names, self._lanes.hash_key(key))
            able.sort(key=lambda number: number not in self._answering)  # stable
        return able


def _has_failed_everywhere(assembly: Assembly, links: Mapping[int, LinkState]) -> bool:
    return bool(assembly.failures) and all(
        number in assembly.failures
        or link.incompatibility is not None
        or link.duplicate_of is not None
        for number, link in links.items()
    )


class HedgeDelay:
    """The delay after which a batch is late, from the latencies of the last answers.

    Hedged requests as in Dean and Barroso, "The Tail at Scale" (2013): wait for about the 99th
    percentile of the latency, so that one request in a hundred is made twice, then take whichever
    answer comes first.
    """

    def __init__(self) -> None:
        self._latencies_s: deque[float] = deque(maxlen=_LATENCIES_MAX)
        self._delay_s: float | None = _FIRST_DELAY_S  # None: to be computed when it is needed

    @property
    def delay_s(self) -> float:
        """Seconds from the request until another node is asked too."""
        if self._delay_s is None:
            percentile_99_s = sorted(self._latencies_s)[(99 * len(self._latencies_s)) // 100]
            self._delay_s = max(_DELAY_MIN_S, _MARGIN * percentile_99_s)
        return self._delay_s

    def record(self, latency_s: float) -> None:
        """Record how long a batch took from its request to its last row."""
        self._latencies_s.append(latency_s)
        if len(self._latencies_s) >= _LATENCIES_MIN:
            self._delay_s = None
