"""The client's book-keeping under any mixture of nodes' events."""

import itertools
import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.client.core.prefetch import Batch, BatchSequence, Prefetch
from feeder.plan.epoch import rank_indices
from feeder.wire.messages import BatchKey, Lent
from tests.client.core.test_prefetch import (
    BATCH,
    CHUNK_FIRSTS,
    C,
    Pages,
    arrive,
    arrive_whole,
    ask,
    fail,
    lend,
    lent,
    make_prefetch,
)
from tests.support.client_shell import open_keys


class Nodes:
    """Nodes behind links, each with its record of requests; a turn requests at random."""

    def __init__(self, prefetch: Prefetch, chance: random.Random, links: int, window: int) -> None:
        self.prefetch = prefetch
        self.chance = chance
        self.window = window
        self.request = 0
        self.wanted: list[dict[BatchKey, int]] = [{} for _ in range(links)]  # the request's number

    def turn(self, samples: int) -> Iterator[tuple[int, BatchKey]]:
        """Request as the scheduler does: new batches, late ones elsewhere, lost ones again."""
        prefetch, links = self.prefetch, range(len(self.wanted))
        prefetch.extend(samples)
        self.request += 1
        wants: list[tuple[int, BatchKey]] = []
        for key in open_keys(prefetch):
            assembly = prefetch.held[key]
            able = [
                link
                for link in links
                if link not in {*assembly.requests, *assembly.failures}
                and prefetch.load(link) < self.window
            ]
            if self.chance.random() < 0.1:
                prefetch.reclaim(self.chance.choice(links), key)
            link = None
            if able and (not assembly.requests or self.chance.random() < 0.4):
                link = self.chance.choice(able)
            elif assembly.requests and self.chance.random() < 0.2:
                link = self.chance.choice(list(assembly.requests))  # again
                prefetch.release(assembly)
            elif len(assembly.failures) == len(links):
                prefetch.give_up(key)
            if link is not None:
                ask(prefetch, link, key, self.request)
                wants.append((link, key))
        for link in links:
            for key in prefetch.releases.pop(link, []):
                self.released(link, key)
                del self.wanted[link][key]  # only once
        for link, key in wants:
            assert key not in self.wanted[link]
            self.wanted[link][key] = self.request
            yield link, key
        for wanted in self.wanted:
            assert len(wanted) <= self.window

    def released(self, link: int, key: BatchKey) -> None:
        """Record a release."""

    def lose(self, link: int) -> None:
        self.prefetch.forget(link)
        self.wanted[link].clear()


def take_next(prefetch: Prefetch, expected: Iterator[BatchKey]) -> Iterator[tuple[BatchKey, Batch]]:
    """Take the next batch, if it is settled; yield it with the key that it must have."""
    if not prefetch.ready:
        assert prefetch.take() is None
        return
    key = next(expected)
    batch = prefetch.take()
    assert batch is not None
    assert batch.key == key
    assert batch.failure in (None, "a disk (d)")
    if batch.valid and batch.failure is None:
        yield key, batch


ACTIONS = ["arrive"] * 4 + ["take"] * 2 + ["turn"] * 3 + ["give", "begin", "lose", "fail"]


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    links=st.integers(1, 3),
    buffers=st.integers(1, 6),
    window=st.integers(1, 6),
    world_size=st.integers(1, 3),
    batches=st.integers(1, 5),
)
def test_any_mixture_of_events_gives_the_sequence_and_nothing_else(
    seed: int, links: int, buffers: int, window: int, world_size: int, batches: int
) -> None:
    """Nodes answer late, twice and out of order, and lose sessions; the consumer starts over."""
    chance = random.Random(seed)
    prefetch = make_prefetch(split="val", buffers=buffers)
    indices = rank_indices(batches, 0, world_size, prefetch.recipe.last_batch)
    nodes = Nodes(prefetch, chance, links, window)
    in_flight: list[tuple[int, BatchKey, int]] = []
    rows: dict[tuple[int, int], BatchKey] = {}  # of which batch the buffers' rows are
    owned: set[int] = set()  # buffers that the consumer holds
    expected: Iterator[BatchKey] = iter(())
    for _ in range(200):
        link = chance.randrange(links)
        match chance.choice(ACTIONS):
            case "arrive" if in_flight:
                link, key, first = in_flight.pop(chance.randrange(len(in_flight)))
                buffer = arrive(prefetch, key, first, link)
                if buffer is not None:
                    assert buffer not in owned
                    rows[buffer, first] = key
                if chance.random() < 0.3:
                    in_flight.append((link, key, first))
            case "take":
                for key, batch in take_next(prefetch, expected):
                    assert batch.buffer not in owned
                    owned.add(batch.buffer)
                    assert {rows[batch.buffer, first] for first in CHUNK_FIRSTS} == {key}
            case "give" if owned:
                prefetch.return_buffer(owned.pop())
            case "begin" if chance.random() < 0.6:
                epoch = chance.randrange(4)
                prefetch.begin(BatchSequence(epoch, indices))
                expected = ((e, i) for e in itertools.count(epoch) for i in indices)
            case "lose" if chance.random() < 0.6:
                nodes.lose(link)
                in_flight = [each for each in in_flight if each[0] != link]
            case "fail" if nodes.wanted[link] and chance.random() < 0.6:
                fail(prefetch, link, chance.choice(list(nodes.wanted[link])), "a disk")
            case "turn":
                for link, key in nodes.turn(batches * BATCH):
                    in_flight += [(link, key, first) for first in CHUNK_FIRSTS]
            case _:
                pass


class Lenders(Nodes):
    """Nodes that reuse slots as soon as they may; their messages come late, but in order."""

    def __init__(self, prefetch: Prefetch, chance: random.Random, links: int, window: int) -> None:
        super().__init__(prefetch, chance, links, window)
        self.slots = [[Pages() for _ in range(window)] for _ in range(links)]  # of this session
        self.word: list[list[Lent]] = [[] for _ in range(links)]

    def turn(self, samples: int) -> Iterator[tuple[int, BatchKey]]:
        for link, key in super().turn(samples):
            pages = self.chance.choice([slot for slot in self.slots[link] if slot.holds is None])
            pages.holds = key, self.request
            slot = self.slots[link].index(pages)
            self.word[link].append(lent(key, slot, self.request))
            yield link, key

    def released(self, link: int, key: BatchKey) -> None:
        held = key, self.wanted[link][key]
        (pages,) = (slot for slot in self.slots[link] if slot.holds == held)
        pages.holds = None

    def lose(self, link: int) -> None:
        super().lose(link)
        self.word[link].clear()
        self.slots[link] = [Pages() for _ in range(self.window)]  # another session, other memory


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    links=st.integers(1, 3),
    buffers=st.integers(1, 6),
    window=st.integers(1, 6),
    batches=st.integers(1, 5),
)
def test_a_node_never_may_write_a_lent_slot_that_is_read(
    seed: int, links: int, buffers: int, window: int, batches: int
) -> None:
    """Nodes reuse slots as soon as they may, messages come late, and the consumer starts over.

    What the client reads is what the node has in the slot, from taking to giving back. The last of
    three nodes copies.
    """
    chance = random.Random(seed)
    prefetch = make_prefetch(split="val", buffers=buffers)
    indices = rank_indices(batches, 0, 1, prefetch.recipe.last_batch)
    nodes = Lenders(prefetch, chance, links, window)
    owned: dict[int, tuple[Pages | None, tuple[BatchKey, int] | None]] = {}
    expected: Iterator[BatchKey] = iter(())
    for _ in range(200):
        link = chance.randrange(links)
        match chance.choice(ACTIONS):
            case "arrive" if nodes.word[link]:
                message = nodes.word[link].pop(0)
                if link == C:
                    arrive_whole(prefetch, (message.epoch, message.index), link)
                else:
                    lend(prefetch, link, message, nodes.slots[link][message.slot])
            case "take":
                for key, batch in take_next(prefetch, expected):
                    assert batch.buffer not in owned
                    pages: Pages | None = batch.lent  # type: ignore[assignment]
                    held = pages and pages.holds
                    assert held is None if pages is None else held and held[0] == key
                    owned[batch.buffer] = pages, held
            case "give" if owned:
                buffer = chance.choice([*owned])
                pages, held = owned.pop(buffer)
                assert pages is None or pages.holds == held, "no node has written there meanwhile"
                prefetch.return_buffer(buffer)
            case "begin" if chance.random() < 0.6:
                epoch = chance.randrange(3)
                prefetch.begin(BatchSequence(epoch, indices))
                expected = ((e, i) for e in itertools.count(epoch) for i in indices)
            case "lose" if chance.random() < 0.4:
                nodes.lose(link)
            case "fail" if nodes.word[link] and chance.random() < 0.6:
                message = nodes.word[link].pop()
                fail(prefetch, link, (message.epoch, message.index), "a disk")
            case "turn":
                for _ in nodes.turn(batches * BATCH):
                    pass
            case _:
                pass
