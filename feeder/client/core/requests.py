"""Who is asked for which open batch, and when somebody else is asked too.

A batch is asked of its lane's owner, or of the next in the lane's order that has room. No node has
more than its even share of a client's asks: owners own unequal numbers of lanes, and a window that
waits for one node leaves the others idle (after Mirrokni, Thorup and Zadimoghaddam, "Consistent
Hashing with Bounded Loads", 2018; as batches are consumed in order, any slack costs throughput). A
batch is asked of the next one as well when

    the node has gone quiet         a ping was not answered
    it is late                      by what answers took so far (``Lateness``); HEDGES_MAX at once
    the node cannot make it         a disk error, say: somebody else holds the same data
    the session was lost            with the connection, or because the node forgot it

and of the same node anew when that speaks but has not answered for ASK_AGAIN_S: then the request,
or the answer, was lost.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from feeder.client.core.node_link import Conversation
from feeder.client.core.prefetch import Ask, Assembly, Key, Prefetch
from feeder.client.core.rendezvous import LanePlaces, rank_nodes

HEDGES_MAX: Final = 2
"""Late batches at once that two nodes make: twice the work helps no fleet that is slow."""

ASK_AGAIN_S: Final = 40.0
"""Longer than a node waits for a worker that hangs (``feeder.session.stalls.CHUNK_DEADLINE_S``)."""

_REMEMBERED: Final = 128
_ENOUGH: Final = 16
_FIRST_DELAY_S: Final = 2.0
"""Before anything is known: the first batch waits for cold files and a dataset that is opened."""

_MARGIN: Final = 1.5
_DELAY_MIN_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Want:
    """Request an open batch on a link, after releasing the lent batch ``instead`` there."""

    link: int
    key: Key
    instead: Key | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Settle a batch as failed: no node can make it."""

    key: Key


class RequestScheduler:
    """Chooses whom to ask; ``due_s`` is when to choose anew if nothing happens before."""

    def __init__(self, prefetch: Prefetch, places: LanePlaces) -> None:
        self.asked_again = 0  # batches that a lost or failing node did not make
        self.hedged = 0  # batches that were late or whose node was quiet
        self.due_s = float("inf")
        self._prefetch = prefetch
        self._places = places
        self._lateness = Lateness()

    def answered(self, ask: Ask, now_s: float) -> None:
        """Note that an ask has led to a whole batch."""
        self._lateness.answered(now_s - ask.asked_s)

    def choose(self, links: Mapping[int, Conversation], now_s: float) -> Iterator[Want | GiveUp]:
        """Yield a decision for each open batch that needs one.

        The caller applies each before it takes the next, and sends the requests at the end.
        """
        self.due_s = float("inf")
        open_batches = list(self._prefetch.open_batches())
        hedges = sum(len(assembly.asks) > 1 for _, assembly in open_batches)
        candidates = _Candidates(links, self._prefetch, self._places, now_s)
        for key, assembly in open_batches:
            if assembly.asks:
                is_hedge = hedges < HEDGES_MAX and len(assembly.asks) == 1
                want = self._choose_another(key, assembly, links, candidates, now_s, is_hedge)
                hedges += want is not None and is_hedge
            else:
                want = candidates.choose(key, is_overdue=assembly.was_asked)
                self.asked_again += want is not None and assembly.was_asked
                if want is None and _has_failed_everywhere(assembly, links):
                    yield GiveUp(key)
            if want is not None:
                yield want

    def _choose_another(
        self,
        key: Key,
        assembly: Assembly,
        links: Mapping[int, Conversation],
        candidates: "_Candidates",
        now_s: float,
        is_hedge: bool,
    ) -> Want | None:
        """Return who is asked for a batch that somebody was asked for, or note when to look again.

        ``is_hedge`` says whether it may be asked of two because it is late.
        """
        asked_s = max(ask.asked_s for ask in assembly.asks.values())
        overdue_s = max(links[number].quiet_at_s for number in assembly.asks)
        if is_hedge:
            overdue_s = min(overdue_s, asked_s + self._lateness.delay_s)
        if now_s < overdue_s:
            if candidates.are_several:
                self.due_s = min(self.due_s, overdue_s)
        else:
            want = candidates.choose(key, is_overdue=True, is_answering=True)
            if want is not None:
                self.hedged += 1
                return want
        if now_s < asked_s + ASK_AGAIN_S:
            self.due_s = min(self.due_s, asked_s + ASK_AGAIN_S)
            return None
        return next((Want(n, key) for n in assembly.asks if candidates.is_answering(n)), None)


class _Candidates:
    """The links that can be asked for something now, and how much more each takes on.

    Most often nobody is to be asked: then none of it is worked out.
    """

    def __init__(
        self,
        links: Mapping[int, Conversation],
        prefetch: Prefetch,
        places: LanePlaces,
        now_s: float,
    ) -> None:
        self._prefetch = prefetch
        self._places = places
        self._served = {number: link for number, link in links.items() if link.is_served}
        self._now_s = now_s

    @cached_property
    def _room(self) -> dict[int, int]:
        return {n: link.window - self._prefetch.load(n) for n, link in self._served.items()}

    @cached_property
    def _over_share(self) -> dict[int, int]:
        share = math.ceil(self._prefetch.buffers / max(1, len(self._served)))
        return {n: max(0, link.window - share) for n, link in self._served.items()}

    @cached_property
    def _answering(self) -> set[int]:
        return {n for n, link in self._served.items() if link.quiet_at_s > self._now_s}

    @property
    def are_several(self) -> bool:
        """Whether there is anybody to ask besides whoever was asked."""
        return len(self._served) > 1

    def is_answering(self, link: int) -> bool:
        """Whether a link can be asked and is not quiet."""
        return link in self._answering

    def choose(self, key: Key, *, is_overdue: bool, is_answering: bool = False) -> Want | None:
        """Return whom to ask, and take of its room; quiet ones last, or not at all.

        For a batch that is overdue a node gets more than its share, and if it has no room a later
        batch that it has lent makes some: it may be that all nodes hold batches which nobody can
        consume before.
        """
        able = self._find_able(key, is_answering)
        for number in able:
            if self._room[number] > (0 if is_overdue else self._over_share[number]):
                self._room[number] -= 1
                return Want(number, key)
        for number in able if is_overdue else ():
            instead = self._prefetch.find_reclaimable(number, key)
            if instead is not None:
                return Want(number, key, instead)
        return None

    def _find_able(self, key: Key, is_answering: bool) -> list[int]:
        """Return all who can make a batch, in the order of preference."""
        willing = self._answering if is_answering else self._served
        able = [n for n in willing if self._prefetch.may_ask(n, key)]
        if len(able) > 1:
            names = [(self._served[number].node_name, number) for number in able]
            able = rank_nodes(names, self._places.place(key))
            able.sort(key=lambda number: number not in self._answering)  # stable
        return able


def _has_failed_everywhere(assembly: Assembly, links: Mapping[int, Conversation]) -> bool:
    return bool(assembly.failures) and all(
        number in assembly.failures or link.unfit is not None or link.twin is not None
        for number, link in links.items()
    )


class Lateness:
    """The delay after which a batch is late, learnt from the last answers.

    Hedged requests as in Dean and Barroso, "The Tail at Scale" (2013): wait for about the 99th
    percentile of the latency, so that one request in a hundred is made twice, then take whichever
    answer comes first.
    """

    def __init__(self) -> None:
        self._latencies_s: deque[float] = deque(maxlen=_REMEMBERED)
        self.delay_s = _FIRST_DELAY_S
        """Seconds from asking until another node is asked too."""

    def answered(self, latency_s: float) -> None:
        """Note how long a batch took from its request to its last row."""
        self._latencies_s.append(latency_s)
        count = len(self._latencies_s)
        if count >= _ENOUGH:
            percentile_99_s = sorted(self._latencies_s)[(99 * count) // 100]
            self.delay_s = max(_DELAY_MIN_S, _MARGIN * percentile_99_s)
