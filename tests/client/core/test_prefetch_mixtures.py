"""The client's book-keeping under any mixture of nodes' events."""

import itertools
import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.client.core.prefetch import BatchSequence, Prefetch
from feeder.plan.epoch import rank_indices
from feeder.wire.messages import BatchKey, Lent
from tests.client.core.test_prefetch import (
    BATCH,
    CHUNK_FIRSTS,
    Pages,
    arrive,
    ask,
    fail,
    lend,
    lent,
    make_prefetch,
)
from tests.support.client_shell import open_keys


class Nodes:
    """Nodes behind links, each with its record of requests; a turn requests at random.

    Those that lend reuse slots as soon as they may, and their messages come late, but in order.
    Chunks of the others come late, twice and out of order.
    """

    def __init__(
        self, prefetch: Prefetch, chance: random.Random, window: int, lends: tuple[bool, ...]
    ) -> None:
        self.prefetch = prefetch
        self.chance = chance
        self.window = window
        self.lends = lends
        self.request = 0
        self.links = range(len(lends))
        self.wanted: list[dict[BatchKey, int]] = [{} for _ in lends]  # the request's number
        self.slots = [self.open_slots() for _ in lends]  # of this session
        self.loans: list[list[Lent]] = [[] for _ in lends]  # in flight
        self.chunks: list[tuple[int, BatchKey, int]] = []  # in flight

    def open_slots(self) -> list[Pages]:
        return [Pages() for _ in range(self.window)]

    def turn(self, samples: int) -> None:
        """Request as the scheduler does: new batches, late ones elsewhere, lost ones again."""
        prefetch, links, chance = self.prefetch, self.links, self.chance
        prefetch.extend(samples)
        self.request += 1
        wants: list[tuple[int, BatchKey]] = []
        for key in open_keys(prefetch):
            batch = prefetch.held[key]
            able = [
                link
                for link in links
                if link not in {*batch.requests, *batch.failures}
                and prefetch.load(link) < self.window
            ]
            if chance.random() < 0.1:
                prefetch.reclaim(chance.choice(links), key)
            link = None
            if able and (not batch.requests or chance.random() < 0.4):
                link = chance.choice(able)
            elif batch.requests and chance.random() < 0.2:
                link = chance.choice(list(batch.requests))  # again
                prefetch.release(batch)
            elif len(batch.failures) == len(links):
                prefetch.give_up(key)
            if link is not None:
                ask(prefetch, link, key, self.request)
                wants.append((link, key))
        for link in links:
            for key in prefetch.releases.pop(link, []):
                self.release(link, key)
        for link, key in wants:
            assert key not in self.wanted[link]
            self.wanted[link][key] = self.request
            self.serve(link, key)
        for wanted in self.wanted:
            assert len(wanted) <= self.window

    def serve(self, link: int, key: BatchKey) -> None:
        if not self.lends[link]:
            self.chunks += [(link, key, first) for first in CHUNK_FIRSTS]
            return
        pages = self.chance.choice([slot for slot in self.slots[link] if slot.holds is None])
        pages.holds = key, self.request
        self.loans[link].append(lent(key, self.slots[link].index(pages), self.request))

    def release(self, link: int, key: BatchKey) -> None:
        held = key, self.wanted[link].pop(key)  # only once
        for pages in self.slots[link]:
            if pages.holds == held:
                pages.holds = None

    def lose(self, link: int) -> None:
        self.prefetch.forget(link)
        self.wanted[link].clear()
        self.loans[link].clear()
        self.chunks = [chunk for chunk in self.chunks if chunk[0] != link]
        self.slots[link] = self.open_slots()  # another session, other memory


ACTIONS = ["chunk"] * 4 + ["loan"] * 4 + ["take"] * 2 + ["turn"] * 3
ACTIONS += ["give", "begin", "lose", "fail"]


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lends=st.lists(st.booleans(), min_size=1, max_size=3).map(tuple),
    buffers=st.integers(1, 6),
    window=st.integers(1, 6),
    world_size=st.integers(1, 3),
    batches=st.integers(1, 5),
)
def test_any_mixture_of_events_gives_the_sequence_and_nothing_else(
    seed: int, lends: tuple[bool, ...], buffers: int, window: int, world_size: int, batches: int
) -> None:
    """Nodes answer late, twice and out of order, and lose sessions; the consumer starts over.

    What the client reads is what the node has in the slot, from taking to giving back.
    """
    chance = random.Random(seed)
    prefetch = make_prefetch(split="val", buffers=buffers)
    indices = rank_indices(batches, 0, world_size, prefetch.recipe.last_batch)
    nodes = Nodes(prefetch, chance, window, lends)
    rows: dict[tuple[int, int], BatchKey] = {}  # of which batch the buffers' rows are
    owned: dict[int, tuple[Pages | None, tuple[BatchKey, int] | None]] = {}  # by buffer
    expected: Iterator[BatchKey] = iter(())
    for _ in range(200):
        link = chance.choice(nodes.links)
        match chance.choice(ACTIONS):
            case "chunk" if nodes.chunks:
                link, key, first = nodes.chunks.pop(chance.randrange(len(nodes.chunks)))
                buffer = arrive(prefetch, key, first, link)
                if buffer is not None:
                    assert buffer not in owned
                    rows[buffer, first] = key
                if chance.random() < 0.3:
                    nodes.chunks.append((link, key, first))
            case "loan" if nodes.loans[link]:
                message = nodes.loans[link].pop(0)
                lend(prefetch, link, message, nodes.slots[link][message.slot])
            case "take" if not prefetch.ready:
                assert prefetch.take() is None
            case "take":
                key, batch = next(expected), prefetch.take()
                assert batch is not None
                assert batch.key == key
                assert batch.failure in (None, "a disk (d)")
                assert batch.buffer not in owned
                if batch.failure is None and batch.valid:
                    pages: Pages | None = batch.lent  # type: ignore[assignment]
                    held = pages and pages.holds
                    if pages is None:
                        assert {rows[batch.buffer, first] for first in CHUNK_FIRSTS} == {key}
                    else:
                        assert held
                        assert held[0] == key
                    owned[batch.buffer] = pages, held
            case "give" if owned:
                buffer = chance.choice([*owned])
                pages, held = owned.pop(buffer)
                assert pages is None or pages.holds == held, "no node has written there meanwhile"
                prefetch.return_buffer(buffer)
            case "begin" if chance.random() < 0.6:
                epoch = chance.randrange(4)
                prefetch.begin(BatchSequence(epoch, indices))
                expected = ((e, i) for e in itertools.count(epoch) for i in indices)
            case "lose" if chance.random() < 0.5:
                nodes.lose(link)
            case "fail" if nodes.wanted[link] and chance.random() < 0.6:
                key = chance.choice([*nodes.wanted[link]])
                if nodes.lends[link]:
                    if not nodes.loans[link]:
                        continue
                    loan = nodes.loans[link].pop()  # the failure comes instead
                    key = loan.epoch, loan.index
                fail(prefetch, link, key, "a disk")
            case "turn":
                nodes.turn(batches * BATCH)
            case _:
                pass
