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
from collections.abc import Mapping
from typing import Final

from feeder.client.core.node_link import LinkState
from feeder.client.core.owners import Preference
from feeder.client.core.prefetch import Batch, Prefetch
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
"""An idle node may take this part of the buffers' batches from a busy owner. With fewer, nodes idle
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

_MARGIN: Final = 1.5
_DELAY_MIN_S: Final = 0.1
_NEVER: Final = float("inf")


class RequestScheduler:
    """Chooses the node for each request; ``due_s`` is when to choose again without an event."""

    def __init__(self, prefetch: Prefetch) -> None:
        self.retried = 0  # batches of a lost or failing node
        self.hedged = 0  # batches that were late, or their node quiet
        self.requested = 0  # batches, each counted once
        self.owned = 0  # batches that were first requested from their lane's owner
        self.number = 0  # of the latest request
        self.due_s = _NEVER
        self.hedge_delay = HedgeDelay()
        self._prefetch = prefetch
        # Since the last change of links:
        self._links: Mapping[int, LinkState] = {}
        self._served: dict[int, LinkState] = {}
        self._names: Mapping[int, str] = {}  # of owners, by link
        self._by_name: dict[str, list[int]] = {}  # served links
        self._preference: Preference | None = None
        # Counted anew by each ``choose``:
        self._now_s = 0.0
        self._load: dict[int, int] = {}  # batches requested, or lent and not released
        self._pending: dict[int, int] = {}  # batches requested and not complete
        self._wants: dict[int, list[BatchKey]] = {}

    def follow(
        self,
        links: Mapping[int, LinkState],
        names: Mapping[int, str],
        preference: Preference,
    ) -> None:
        """Take note of what has changed in the links; they must not change until the next call.

        ``names`` are those by which ``preference`` knows the links' nodes.
        """
        self._links, self._names, self._preference = links, names, preference
        self._served, self._by_name = {}, {}
        for number, link in links.items():
            if link.is_served:
                self._served[number] = link
                self._by_name.setdefault(names[number], []).append(number)

    def choose(self, now_s: float) -> dict[int, list[BatchKey]]:
        """Choose the batches to request now, by link, and record them as requested."""
        prefetch = self._prefetch
        self._now_s, self.due_s, self._wants = now_s, _NEVER, {}
        self._load = dict.fromkeys(self._links, 0)
        self._pending = dict.fromkeys(self._links, 0)
        open_batches: list[tuple[BatchKey, Batch]] = []
        hedges = 0
        for key, batch in prefetch.held.items():
            for number in batch.requests:
                self._load[number] += 1
                self._pending[number] += not batch.settled
            if not batch.settled:
                open_batches.append((key, batch))
                hedges += len(batch.requests) > 1
        for loan in {*prefetch.borrowed.values()}:
            if loan.link in self._load:
                self._load[loan.link] += 1
        self.number += 1
        waiting: list[BatchKey] = []
        for key, batch in open_batches:
            if batch.requests:
                hedges += self._choose_another(key, batch, is_hedge=hedges < HEDGES_MAX)
            elif batch.requested_s is None:
                if not self._choose_owner(key):
                    waiting.append(key)
            elif self._choose(key):
                self.retried += 1
            elif self._has_failed_everywhere(batch):
                prefetch.give_up(key)
        if waiting:
            near = {*prefetch.coming(self._count_near())}
            for key in waiting:
                if key not in near:
                    break
                if self._choose_idle(key) or key != open_batches[0][0]:
                    continue
                is_idle = not any(self._pending[number] for number in self._served)
                if is_idle and self._choose(key):  # all slots hold batches that come after this one
                    self._count_first(key)
        self.number -= not self._wants
        return self._wants

    # --- One batch: each method requests it and returns True, or returns False -----------------

    def _choose_owner(self, key: BatchKey) -> bool:
        """Ask the first node in the batch's order, if that is not busy enough."""
        for number in self._prefer(key)[:1]:
            if self._count_free(number) > 0 and self._count_lacking(number) > 0:
                self._request(number, key)
                self._count_first(key)
                return True
        return False

    def _choose_idle(self, key: BatchKey) -> bool:
        """Ask the node that lacks most batches; the first in the order of those."""
        able = [n for n in self._prefer(key) if self._count_lacking(n) > 0]
        able = [n for n in able if self._count_free(n) > 0]
        if not able:
            return False
        self._request(max(able, key=self._count_lacking), key)
        self._count_first(key)
        return True

    def _choose(self, key: BatchKey, *, is_answering: bool = False) -> bool:
        """Ask for an overdue batch; quiet nodes last, or not at all.

        It is done however busy the node is, and if all windows are full, reclaims the slot of a
        later batch: otherwise all nodes could be full of batches that come after this one.
        """
        able = [n for n in self._prefer(key) if not is_answering or self._answers(n)]
        for number in able:
            if self._count_free(number) > 0:
                self._request(number, key)
                return True
        for number in able:
            if self._prefetch.reclaim(number, key):
                self._load[number] -= 1
                self._request(number, key)
                return True
        return False

    def _choose_another(self, key: BatchKey, batch: Batch, *, is_hedge: bool) -> bool:
        """Ask again for a batch in flight, or set when that may be due; return whether a second
        node makes it now because it is late.

        ``is_hedge`` is whether a second node may be asked because of that.
        """
        requested_s = batch.requested_s or 0.0
        if not self._served.keys() <= batch.requests.keys():
            overdue_s = max([self._links[number].quiet_at_s for number in batch.requests])
            is_hedge &= len(batch.requests) == 1
            if is_hedge:
                overdue_s = min(overdue_s, requested_s + self.hedge_delay.delay_s)
            if self._now_s < overdue_s:
                self.due_s = min(self.due_s, overdue_s)
            elif self._choose(key, is_answering=True):
                self.hedged += 1
                return is_hedge
        if self._now_s < requested_s + RETRY_S:
            self.due_s = min(self.due_s, requested_s + RETRY_S)
            return False
        for number in batch.requests:
            if self._answers(number):
                self._request(number, key)
                break
        return False

    def _request(self, number: int, key: BatchKey) -> None:
        if number not in self._prefetch.held[key].requests:
            self._load[number] += 1
            self._pending[number] += 1
        self._wants.setdefault(number, []).append(key)
        self._prefetch.record_request(number, key, self.number, self._now_s)

    def _count_first(self, key: BatchKey) -> None:
        self.requested += 1
        (number,) = self._prefetch.held[key].requests
        self.owned += self._order(key)[:1] == (self._names[number],)

    # --- The nodes for a batch ----------------------------------------------------------------

    def _order(self, key: BatchKey) -> tuple[str, ...]:
        assert self._preference is not None, "a node has answered"
        return self._preference.order(key)

    def _answers(self, number: int) -> bool:
        return number in self._served and self._served[number].quiet_at_s > self._now_s

    def _prefer(self, key: BatchKey) -> list[int]:
        """The links of all nodes that can make a batch, in order of preference; quiet ones last."""
        batch = self._prefetch.held[key]
        names = self._order(key) if len(self._by_name) > 1 else tuple(self._by_name)
        preferred: list[int] = []
        quiet: list[int] = []
        for name in names:
            numbers = self._by_name.get(name, [])
            if len(numbers) > 1:  # a feeder's node processes have an order of their own
                numbers = sorted(numbers, key=lambda n: self._weigh(n, key))
            for number in numbers:
                if number not in batch.requests and number not in batch.failures:
                    (preferred if self._answers(number) else quiet).append(number)
        return preferred + quiet

    def _weigh(self, number: int, key: BatchKey) -> bytes:
        assert self._preference is not None, "a node has answered"
        return self._preference.weigh_node(self._served[number].node_name, key)

    def _has_failed_everywhere(self, batch: Batch) -> bool:
        return bool(batch.failures) and all(
            number in batch.failures
            or link.incompatibility is not None
            or link.duplicate_of is not None
            for number, link in self._links.items()
        )

    # --- How busy nodes are -------------------------------------------------------------------

    def _count_near(self) -> int:
        """How many of the next batches an idle node may take from their owner.

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

    def _count_needed(self, number: int) -> int:
        """Batches that keep a node busy, of all ranks that it serves."""
        welcome = self._served[number].welcome
        assert welcome is not None, "it is served"
        chunks = math.ceil(self._prefetch.recipe.batch_size / welcome.chunk_images)
        return 1 + math.ceil(_CHUNKS_A_WORKER * welcome.workers / chunks)

    def _count_free(self, number: int) -> int:
        welcome = self._served[number].welcome
        return (welcome.window if welcome else 0) - self._load[number]

    def _count_lacking(self, number: int) -> int:
        """Batches that a node lacks to be busy with this rank's part of its work.

        That is enough chunks for all workers, each with one to fill and the next one at hand, and a
        batch that is on its way, over the ranks that it serves; or this client's even share of the
        buffers if that is less.
        """
        prefetch = self._prefetch
        if len(self._served) == 1:
            return prefetch.buffers
        share = math.ceil(prefetch.buffers / len(self._served))
        ranks = min(prefetch.world_size, self._served[number].sharers or prefetch.world_size)
        busy = min(share, math.ceil(self._count_needed(number) / ranks))
        return busy - self._pending[number]


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
