"""Which open batch is requested from which node, and when it is hedged or retried.

    open batches   │ near: half of the buffers          │ far                  │
                     the lane's owner is asked at once, if it lacks batches to be busy
                     another node is asked, if one      │ waits for its owner
                     lacks batches to be busy

A batch is bound to a node late. Were all requested at once, each would need a node with room now,
and the owner, which has the lane in its cache, is that node for two batches of five. Instead each
node is kept busy with no more than that takes. What is left waits, without cost, for its owner; an
idle node takes the earliest one that is near, as batches are consumed in order: work stealing
(Blumofe and Leiserson, "Scheduling Multithreaded Computations by Work Stealing", 1999). With 16
batches and four nodes, saturated, nine of ten go to the owner and no node idles. Where the buffers
hardly suffice to keep the nodes busy, more of them are near.

A batch in flight is requested from the next node as well when

    the node has gone quiet         a ping was not answered
    the batch is late               by the latencies so far (``HedgeDelay``); HEDGES_MAX at once
    the node cannot make it         a disk error, say: another node holds the same data
    the session was lost            with the connection, or because the node has restarted

and again from the same node when that sends messages but has not answered for RETRY_S: then the
request, or the answer, was lost.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from typing import Final

from msgspec import Struct

from feeder.client.core.node_link import LinkState
from feeder.client.core.preference import Preference
from feeder.client.core.prefetch import Assembly, BatchRequest, Prefetch
from feeder.wire.messages import BatchKey

HEDGES_MAX: Final = 2
"""Late batches at once that two nodes make: double work does not help a slow fleet."""

RETRY_S: Final = 40.0
"""Longer than a node waits for a worker that hangs (``feeder.session.worker_watch``)."""

_LATENCIES_MAX: Final = 128
_LATENCIES_MIN: Final = 16
_FIRST_DELAY_S: Final = 2.0
"""Before any latency is known: the first batch waits for cold files and the dataset's opening."""

NEAR_SHARE: Final = 0.5
"""Of the buffers: the batches that an idle node may take from a busy owner. With fewer, nodes idle
while the consumer waits for a busy one; with more, batches leave their owners without need. See
``feeder-bench cluster --any``."""

NEAR_SHARE_TIGHT: Final = 0.75
_TIGHT: Final = 2.5
"""Buffers of all ranks over what keeps a few nodes busy; or buffers over nodes, where the nodes are
many and the ranks fewer."""

_FEW_NODES: Final = 4
_NEAR_MIN: Final = 3

_CHUNKS_A_WORKER: Final = 2
"""One being filled, one queued (``feeder.session.dispatch``)."""

_JOIN_S: Final = 2.0
"""How long batches wait for a node that is being dialled and greeted."""

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

    def __init__(
        self,
        prefetch: Prefetch,
        preference: Preference,
        owner_name: Callable[[LinkState], str],
    ) -> None:
        """``owner_name`` returns the name by which ``preference`` knows a link's node."""
        self.retried = 0  # batches of a lost or failing node
        self.hedged = 0  # batches that were late, or their node quiet
        self.requested = 0  # batches
        self.owned = 0  # batches that were first requested from their lane's owner
        self.due_s = float("inf")
        self._prefetch = prefetch
        self._preference = preference
        self._owner_name = owner_name
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
        candidates = _Candidates(links, self._prefetch, self._preference, self._owner_name, now_s)
        self.due_s = candidates.due_s
        waiting: list[BatchKey] = []
        for key, assembly in open_batches:
            if assembly.requests:
                is_hedge = hedges < HEDGES_MAX and len(assembly.requests) == 1
                want = self._choose_another(key, assembly, links, candidates, now_s, is_hedge)
                hedges += want is not None and is_hedge
            elif assembly.was_requested:
                want = candidates.choose(key)
                self.retried += want is not None
                if want is None and _has_failed_everywhere(assembly, links):
                    yield GiveUp(key)
            else:
                want = candidates.choose_owner(key)
                if want is None:
                    waiting.append(key)
                else:
                    self._count(want, links)
            if want is not None:
                yield want
        near = set(self._prefetch.coming(candidates.count_near()))
        for key in waiting:
            if key not in near:
                break
            want = candidates.choose_idle(key)
            if want is None and key == open_batches[0][0] and candidates.are_idle:
                want = candidates.choose(key)  # all slots hold batches that come after this one
            if want is not None:
                self._count(want, links)
                yield want

    def _count(self, want: Want, links: Mapping[int, LinkState]) -> None:
        self.requested += 1
        order = self._preference.order(want.key)
        self.owned += order[:1] == (self._owner_name(links[want.link]),)

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
            elif want := candidates.choose(key, is_answering=True):
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
        preference: Preference,
        owner_name: Callable[[LinkState], str],
        now_s: float,
    ) -> None:
        self._prefetch = prefetch
        self._preference = preference
        self._served = {number: link for number, link in links.items() if link.is_served}
        self._answering = {n for n, link in self._served.items() if link.quiet_at_s > now_s}
        self._by_name: dict[str, list[int]] = {}
        for number, link in self._served.items():
            self._by_name.setdefault(owner_name(link), []).append(number)
        joining = [link for link in links.values() if link.is_joining]
        joining = [link for link in joining if now_s < link.dialled_s + _JOIN_S]
        self._joining = {(owner_name(link),) for link in joining}
        self._joining.difference_update((name,) for name in self._by_name)
        self.due_s = min([link.dialled_s + _JOIN_S for link in joining], default=float("inf"))
        """When batches that wait for a joining node wait no longer."""
        # Counted when they are first needed:
        self._free_window: dict[int, int] = {}
        self._lacking: dict[int, int] = {}  # batches that a node needs to be busy

    @property
    def are_idle(self) -> bool:
        """Whether no batch is in flight on any link."""
        return not any(self._prefetch.pending(number) for number in self._served)

    def are_beyond(self, links: KeysView[int]) -> bool:
        """Whether a node serves this client over none of these links."""
        return not self._served.keys() <= links

    def is_answering(self, link: int) -> bool:
        """Whether a link can be asked and is not quiet."""
        return link in self._answering

    def count_near(self) -> int:
        """Return how many of the next batches an idle node may take from their owner.

        More where the buffers hardly suffice: a node without a rank's batches then idles, and the
        consumer soon waits. All where they cannot keep a few nodes busy in any case.
        """
        buffers, nodes = self._prefetch.buffers, len(self._served)
        ranks = self._prefetch.world_size
        if nodes <= _FEW_NODES:
            needed = sum(map(self._count_needed, self._served))
            is_tight = buffers * ranks < _TIGHT * needed
            if buffers * ranks < needed:
                return buffers
        else:
            is_tight = ranks < nodes < buffers < _TIGHT * nodes
        share = NEAR_SHARE_TIGHT if is_tight else NEAR_SHARE
        return max(_NEAR_MIN, math.ceil(share * buffers))

    def choose_owner(self, key: BatchKey) -> Want | None:
        """Return a request to the first node in the batch's order, if that is not busy enough.

        An owner that is only now being greeted is waited for.
        """
        if self._joining and self._preference.order(key)[:1] in self._joining:
            return None
        owner = next(self._prefer(key), None)
        return self._take(owner, key) if owner is not None else None

    def choose_idle(self, key: BatchKey) -> Want | None:
        """Return a request to the node that lacks most batches; the first in the order of those."""
        able = [number for number in self._prefer(key) if self._count_lacking(number) > 0]
        able = [number for number in able if self._count_free(number) > 0]
        idlest = max(able, key=self._count_lacking, default=None)
        return self._take(idlest, key) if idlest is not None else None

    def choose(self, key: BatchKey, *, is_answering: bool = False) -> Want | None:
        """Return a request for an overdue batch; to quiet nodes last, or not at all.

        It is made however busy the node is, and if all windows are full, reclaims the slot of a
        later batch: otherwise all nodes could be full of batches that come after this one.
        """
        able = [n for n in self._prefer(key) if n in self._answering or not is_answering]
        for number in able:
            if self._count_free(number) > 0:
                self._record(number)
                return Want(number, key)
        for number in able:
            reclaim = self._prefetch.find_reclaimable(number, key)
            if reclaim is not None:
                return Want(number, key, reclaim)
        return None

    def _prefer(self, key: BatchKey) -> Iterator[int]:
        """Yield the links of all nodes that can make a batch, in the order of preference; those
        that are quiet last."""
        quiet: list[int] = []
        links = self._by_name
        names = self._preference.order(key) if len(links) > 1 else tuple(links)
        for name in names:
            for number in self._sort(links.get(name, ()), key):
                if not self._prefetch.can_request(number, key):
                    continue
                if number in self._answering:
                    yield number
                else:
                    quiet.append(number)
        yield from quiet

    def _sort(self, numbers: Sequence[int], key: BatchKey) -> Sequence[int]:
        """Return a feeder's node processes in the order of preference for a batch."""
        if len(numbers) < 2:
            return numbers
        weigh = self._preference.weigher(key)
        return sorted(numbers, key=lambda number: weigh(self._served[number].node_name))

    def _take(self, number: int, key: BatchKey) -> Want | None:
        if self._count_free(number) <= 0 or self._count_lacking(number) <= 0:
            return None
        self._record(number)
        return Want(number, key)

    def _record(self, number: int) -> None:
        self._free_window[number] = self._count_free(number) - 1
        self._lacking[number] = self._count_lacking(number) - 1

    def _count_needed(self, number: int) -> int:
        """Return how many batches keep a node busy, of all ranks that it serves."""
        link = self._served[number]
        chunks = math.ceil(self._prefetch.recipe.batch_size / link.chunk_images)
        return 1 + math.ceil(_CHUNKS_A_WORKER * link.workers / chunks)

    def _count_free(self, number: int) -> int:
        if number not in self._free_window:
            window = self._served[number].window
            self._free_window[number] = window - self._prefetch.load(number)
        return self._free_window[number]

    def _count_lacking(self, number: int) -> int:
        """Return how many batches a node lacks to be busy with this rank's part of its work.

        That is enough chunks for all workers, each with one to fill and the next one at hand, and a
        batch that is on its way, over the ranks that it serves; or this client's even share of the
        buffers if that is less.
        """
        if number not in self._lacking:
            link, prefetch = self._served[number], self._prefetch
            if len(self._served) == 1:
                return prefetch.buffers
            batches = self._count_needed(number)
            share = math.ceil(prefetch.buffers / len(self._served))
            ranks = min(prefetch.world_size, link.sharers or prefetch.world_size)
            busy = min(share, math.ceil(batches / ranks))
            self._lacking[number] = busy - prefetch.pending(number)
        return self._lacking[number]


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
