"""Who is asked for which open batch, and when somebody else is asked too.

A batch is asked of its lane's owner, or of the next in the lane's order that has room. No node has
more than its even share of a client's asks: owners own unequal numbers of lanes, and a window that
waits for one node leaves the others idle (after Mirrokni, Thorup and Zadimoghaddam, "Consistent
Hashing with Bounded Loads", 2018; as batches are consumed in order, any slack costs throughput). A
batch is asked of the next one as well when

    the node has gone quiet         a ping was not answered
    it is late                      by what answers took so far (``_lateness``); HEDGES_MAX at once
    the node cannot make it         a disk error, say: somebody else holds the same data
    the session was lost            with the connection, or because the node forgot it

and of the same node anew when that speaks but has not answered for ASK_AGAIN_S: then the request,
or the answer, was lost.
"""

import math
from collections.abc import Mapping
from typing import Final

from trainer_client._conversation import Conversation
from trainer_client._lateness import Lateness
from trainer_client._owners import LanePlaces, rank_nodes
from trainer_client._prefetch import Ask, Assembly, Key, Prefetch

HEDGES_MAX: Final = 2
"""Late batches at once that two nodes make: twice the work helps no fleet that is slow."""

ASK_AGAIN_S: Final = 40.0
"""Longer than a node waits for a worker that hangs (``feeder.node_loop.CHUNK_DEADLINE_S``)."""


class Asker:
    """Chooses whom to ask; ``due_s`` is when to choose anew if nothing happens before."""

    def __init__(self, prefetch: Prefetch, places: LanePlaces) -> None:
        self.asked_again = 0  # batches that a lost or failing node did not make
        self.hedged = 0  # batches that were late or whose node was quiet
        self.request = 0  # number of the latest request
        self.due_s = float("inf")
        self._prefetch = prefetch
        self._places = places
        self._lateness = Lateness()

    def answered(self, ask: Ask, now_s: float) -> None:
        """Note that an ask has led to a whole batch."""
        self._lateness.answered(now_s - ask.asked_s)

    def choose(self, links: Mapping[int, Conversation], now_s: float) -> dict[int, list[Key]]:
        """Return what each link is to be asked for now, noted as asked in request ``request``."""
        self.due_s = float("inf")
        open_batches = list(self._prefetch.open_batches())
        hedges_left = HEDGES_MAX - sum(len(assembly.asks) > 1 for _, assembly in open_batches)
        candidates = _Candidates(links, self._prefetch, self._places, now_s)
        wants: dict[int, list[Key]] = {}
        for key, assembly in open_batches:
            if not assembly.asks:
                link = candidates.choose(key)
                self.asked_again += link is not None and assembly.was_asked
                if link is None and _has_failed_everywhere(assembly, links):
                    self._prefetch.give_up(key)
            else:
                asked_s = max(ask.asked_s for ask in assembly.asks.values())
                quiet_at_s = max(links[number].quiet_at_s for number in assembly.asks)
                is_hedge = hedges_left > 0 and len(assembly.asks) == 1
                late_at_s = asked_s + self._lateness.delay_s if is_hedge else float("inf")
                link = None
                if now_s >= min(quiet_at_s, late_at_s):
                    link = candidates.choose(key, is_answering=True)
                    self.hedged += link is not None
                    hedges_left -= link is not None
                elif candidates.are_several:
                    self.due_s = min(self.due_s, quiet_at_s, late_at_s)
                if link is None and now_s >= asked_s + ASK_AGAIN_S:
                    link = next((n for n in assembly.asks if links[n].quiet_at_s > now_s), None)
                elif link is None:
                    self.due_s = min(self.due_s, asked_s + ASK_AGAIN_S)
            if link is not None:
                wants.setdefault(link, []).append(key)
        self.request += bool(wants)
        for number, keys in wants.items():
            for key in keys:
                self._prefetch.ask(number, key, self.request, now_s, links[number].chunk_images)
        return wants


class _Candidates:
    """The links that can be asked for something now, and how much more each takes on."""

    def __init__(
        self,
        links: Mapping[int, Conversation],
        prefetch: Prefetch,
        places: LanePlaces,
        now_s: float,
    ) -> None:
        self._prefetch = prefetch
        self._places = places
        served = {number: link for number, link in links.items() if link.is_served}
        self._names = [(link.node_name, number) for number, link in served.items()]
        share = math.ceil(prefetch.buffers / max(1, len(served)))
        self._room = {n: min(link.window, share) - prefetch.load(n) for n, link in served.items()}
        self._answering = {n for n, link in served.items() if link.quiet_at_s > now_s}

    @property
    def are_several(self) -> bool:
        """Whether there is anybody to ask besides whoever was asked."""
        return len(self._room) > 1

    def choose(self, key: Key, *, is_answering: bool = False) -> int | None:
        """Return whom to ask, and take of its room; quiet ones last, or not at all."""
        able = [
            number
            for _, number in self._names
            if self._room[number] > 0
            and (number in self._answering or not is_answering)
            and self._prefetch.may_ask(number, key)
        ]
        if len(able) > 1:
            order = rank_nodes(self._names, self._places.place(key))
            able.sort(key=lambda number: (number not in self._answering, order.index(number)))
        if not able:
            return None
        self._room[able[0]] -= 1
        return able[0]


def _has_failed_everywhere(assembly: Assembly, links: Mapping[int, Conversation]) -> bool:
    return bool(assembly.failures) and all(
        number in assembly.failures or link.unfit is not None or link.twin is not None
        for number, link in links.items()
    )
