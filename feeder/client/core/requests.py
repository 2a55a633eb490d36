"""Which open batch is requested from which node, and when it is hedged or retried.

    open batches   │ near: half of the buffers          │ far                  │
                     the lane's owner is asked at once, if it lacks batches to be busy
                     another node is asked, if one      │ waits for its owner
                     lacks batches to be busy

A batch is bound to a node late: each node is kept busy with no more than that takes. What is left
waits, without cost, for its owner, which has the lane in its cache; an idle node takes one that is
near, as batches are consumed in order: work stealing (Blumofe and Leiserson, "Scheduling
Multithreaded Computations by Work Stealing", 1999). It takes one of the lanes for which it is the
first to stand in, which are the same in each epoch: what it keeps of them it need not fetch again.
With 16 batches and four nodes, saturated, nine of ten go to the owner and nodes idle 1 % of the
time; were all requested at once, half would.

A batch in flight is requested from the next node as well when

    the node has gone quiet         a ping was not answered
    the batch is late               by the latencies so far (``late_after_s``); HEDGES_MAX at once
    the node cannot make it         a disk error, say: another node holds the same data
    the session was lost            with the connection, or because the node has restarted

After RETRY_S all its requests are given up, and it is requested like one whose session was lost:
the request, or the answer, was lost.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import ceil, inf
from typing import Final

from feeder.client.core.node_link import QUIET_S, LinkState
from feeder.client.core.owners import Preference
from feeder.client.core.prefetch import Batch, Prefetch
from feeder.wire.messages import BatchKey

HEDGES_MAX: Final = 2
"""Late batches at once that two nodes make: double work does not help a slow fleet."""

RETRY_S: Final = 40.0
"""Longer than a node waits for a worker that hangs (``feeder.session.worker_watch``)."""

NEAR_SHARE: Final = 0.56
"""An idle node may take this part of the buffers' batches from a busy owner: 2 of 5, 5 of 9. With
fewer, nodes idle while the consumer waits for a busy one; with more, batches leave their owners
without need. See ``feeder-bench cluster --any``."""

_NEAR_MIN: Final = 2
_CHUNKS_A_WORKER: Final = 2  # one being filled, one queued (``feeder.session.dispatch``)

_FIRST_DELAY_S: Final = 2.0  # the first batches wait for cold files and the dataset's opening
_LATENCIES_MIN: Final = 16
_LATENCIES_MAX: Final = 128
_MARGIN: Final = 1.5
_DELAY_MIN_S: Final = 0.1


class RequestScheduler:
    """Chooses the node for each request; ``due_s`` is when to choose again without an event."""

    def __init__(self, prefetch: Prefetch, preference: Preference) -> None:
        self.retried = 0  # batches of a lost or failing node
        self.hedged = 0  # batches that were late, or their node quiet
        self.requested = 0  # batches, each counted once
        self.owned = 0  # batches that were first requested from their lane's owner
        self.number = 0  # of the latest request
        self.in_flight = 0  # batches requested and not complete
        self.waits_for_room = False  # whether a batch could not be requested
        self.due_s = inf
        self.latencies_s: deque[float] = deque(maxlen=_LATENCIES_MAX)  # request to last row
        self.late_after_s = _FIRST_DELAY_S  # from a batch's request: then another node is asked too
        self._prefetch = prefetch
        self._preference = preference
        # Since the last change of links:
        self._links: Mapping[int, LinkState] = {}
        self._by_name: dict[str, list[int]] = {}  # served links, by the name that owns lanes
        self._windows: dict[int, int] = {}  # of served links
        self._busy: dict[int, int] = {}  # batches that keep their nodes busy for this client
        self._near = 0  # how many of the next batches an idle node may take from their owner
        # Counted anew by each ``choose``:
        self._now_s = 0.0
        self._free: dict[int, int] = {}  # what is left of the windows
        self._lacking: dict[int, int] = {}  # batches that each node lacks to be busy
        self._wants: dict[int, list[BatchKey]] = {}

    def follow(self, links: Mapping[int, LinkState]) -> None:
        """Take note of what has changed in the links, and once a second, as pings are sent.

        A node is busy with enough chunks for all its workers, each with one to fill and the next
        one at hand, and with a batch that is on its way. This client gives it its part of that, as
        one of the ranks that the node serves, or an even share of its buffers if that is less.
        """
        self._links = links
        self._by_name, self._windows, self._busy = {}, {}, {}
        buffers, ranks = self._prefetch.buffers, self._prefetch.world_size
        served = [link for link in links.values() if link.is_served]
        served.sort(key=lambda link: link.node_name)  # alike for all clients
        needed_in_all = 0
        for link in served:
            assert link.welcome is not None, "it is served"
            self._by_name.setdefault(link.owner, []).append(link.number)
            self._windows[link.number] = link.welcome.window
            chunks = ceil(self._prefetch.recipe.batch_size / link.welcome.chunk_images)
            needed = 1 + ceil(_CHUNKS_A_WORKER * link.welcome.workers / chunks)
            needed_in_all += needed
            part = ceil(needed / min(ranks, link.sharers or ranks))
            self._busy[link.number] = min(part, ceil(buffers / len(served)))
        if len(served) == 1:
            self._busy[served[0].number] = buffers
        # All are near where the ranks' batches cannot keep all nodes busy (each has one with its
        # consumer), and this one's are enough to see which nodes idle.
        is_tight = (buffers - 1) * ranks < needed_in_all and buffers >= len(served)
        self._near = buffers if is_tight else max(_NEAR_MIN, int(NEAR_SHARE * buffers))
        # Hedged requests as in Dean and Barroso, "The Tail at Scale" (2013): about the 99th
        # percentile, so that one request in a hundred is made twice; the first answer counts.
        known_s = sorted(self.latencies_s)
        if len(known_s) >= _LATENCIES_MIN:
            self.late_after_s = max(_DELAY_MIN_S, _MARGIN * known_s[99 * len(known_s) // 100])

    def choose(self, now_s: float) -> dict[int, list[BatchKey]]:
        """Choose the batches to request now, by link, and record them as requested."""
        prefetch = self._prefetch
        self._now_s, self.due_s, self._wants = now_s, inf, {}
        self._free, self._lacking = defaultdict(int, self._windows), defaultdict(int, self._busy)
        open_batches: list[Batch] = []
        hedges = 0
        for batch in (*prefetch.held.values(), *{*prefetch.borrowed.values()}):
            if not batch.settled:
                if now_s >= batch.requested_s + RETRY_S:
                    prefetch.release(batch)
                open_batches.append(batch)
                hedges += len(batch.requests) > 1
            for number in batch.requests:
                self._free[number] -= 1
                self._lacking[number] -= not batch.settled
        waiting: list[Batch] = []
        for batch in open_batches:
            if batch.requests:
                self.due_s = min(self.due_s, batch.requested_s + RETRY_S)
                hedges += self._hedge(batch, is_late_allowed=hedges < HEDGES_MAX)
            elif batch.requested_s == inf:
                if not self._ask_owner(batch):
                    waiting.append(batch)
            elif self._choose(batch, self._prefer(batch)):
                self.retried += 1
            elif batch.failures and all(
                number in batch.failures or link.duplicate_of is not None
                for number, link in self._links.items()
            ):
                prefetch.give_up(batch.key)
        if waiting and any(map(self._is_idle, self._windows)):
            near = {*prefetch.coming(self._near)}
            self._share_out([*takewhile(lambda batch: batch.key in near, waiting)])
        first = waiting and waiting[0] is open_batches[0]
        # All slots may hold batches that come after the one that the consumer waits for.
        if first and not any(batch.requests for batch in open_batches):
            self._choose(waiting[0], self._prefer(waiting[0]))
        self.number += bool(self._wants)
        self.in_flight = len([batch for batch in open_batches if batch.requests])
        self.waits_for_room = self.in_flight < len(open_batches)
        return self._wants

    def _is_idle(self, number: int) -> bool:
        return self._lacking[number] > 0 and self._free[number] > 0

    def _ask_owner(self, batch: Batch) -> bool:
        """Ask the owner of a batch's lane if it lacks batches to be busy."""
        owner = self._prefer(batch)[:1]
        if not (owner and self._is_idle(owner[0])):
            return False
        self._request(owner[0], batch)
        return True

    def _share_out(self, waiting: list[Batch]) -> None:
        """Ask idle nodes, those that lack most first, each for the batch in whose order it comes
        first, the earliest of several."""
        ranks = [{n: rank for rank, n in enumerate(self._prefer(batch))} for batch in waiting]
        while choices := [
            (-self._lacking[number], rank, place, number)
            for place, numbers in enumerate(ranks)
            for number, rank in numbers.items()
            if self._is_idle(number)
        ]:
            _, _, place, number = min(choices)
            self._request(number, waiting.pop(place))
            del ranks[place]

    def _choose(self, batch: Batch, preferred: Sequence[int]) -> bool:
        """Ask for an overdue batch, however busy the node is; if all windows are full, reclaim the
        slot of a later batch: else all nodes could be full of batches that come after this one."""
        for number in preferred:
            if self._free[number] > 0:
                self._request(number, batch)
                return True
        for number in preferred:
            if self._prefetch.reclaim(number, batch.key):
                self._free[number] += 1
                self._request(number, batch)
                return True
        return False

    def _hedge(self, batch: Batch, *, is_late_allowed: bool) -> bool:
        """Ask another node for a batch in flight whose nodes are quiet or that is late, or set when
        that may be due; return whether one was asked."""
        if self._windows.keys() <= batch.requests.keys():
            return False
        overdue_s = max([self._links[number].heard_s for number in batch.requests]) + QUIET_S
        if is_late_allowed and len(batch.requests) == 1:
            overdue_s = min(overdue_s, batch.requested_s + self.late_after_s)
        if self._now_s < overdue_s:
            self.due_s = min(self.due_s, overdue_s)
            return False
        is_asked = self._choose(batch, [n for n in self._prefer(batch) if not self._is_quiet(n)])
        self.hedged += is_asked
        return is_asked

    def owns(self, number: int, key: BatchKey) -> bool:
        """Whether a link's feeder owns the lane of a batch."""
        return self._preference.order(key)[:1] == (self._links[number].owner,)

    def _request(self, number: int, batch: Batch) -> None:
        if batch.requested_s == inf:
            self.requested += 1
            self.owned += self.owns(number, batch.key)
        self._free[number] -= 1
        self._lacking[number] -= 1
        self._wants.setdefault(number, []).append(batch.key)
        self._prefetch.record_request(number, batch.key, self.number + 1, self._now_s)

    def _is_quiet(self, number: int) -> bool:
        return self._now_s >= self._links[number].heard_s + QUIET_S

    def _prefer(self, batch: Batch) -> list[int]:
        """The links of all nodes that can make a batch, in order of preference; quiet ones last."""
        names = self._preference.order(batch.key) if len(self._by_name) > 1 else self._by_name
        preferred: list[int] = []
        for name in names:
            numbers = self._by_name.get(name, [])
            if len(numbers) > 1:  # a feeder's node processes
                first = self._preference.turn(batch.key) % len(numbers)
                numbers = numbers[first:] + numbers[:first]
            preferred += [n for n in numbers if n not in batch.requests and n not in batch.failures]
        return sorted(preferred, key=self._is_quiet)
