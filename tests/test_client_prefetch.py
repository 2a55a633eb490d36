"""The client's book-keeping, without socket, thread or clock."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import DatasetError, ProtocolError
from feeder.plan import rank_indices
from feeder.recipe import Recipe
from feeder.wire import Chunk, Lent
from trainer_client._prefetch import Key, Placement, Prefetch

BATCH, SIDE, CHUNK = 7, 8, 3
CHUNK_FIRSTS = (0, 3, 6)


def make_prefetch(
    *, split: str = "train", rank: int = 0, world_size: int = 1, buffers: int = 5
) -> Prefetch:
    recipe = Recipe.for_split(
        "val" if split == "val" else "train", batch_size=BATCH, image_size=SIDE
    )
    return Prefetch(recipe, rank=rank, world_size=world_size, buffers=buffers)


def chunk(key: Key, first: int, **changes: int) -> tuple[Chunk, list[int]]:
    images = changes.pop("images", min(CHUNK, BATCH - first))
    fields = {"session": 1, "epoch": key[0], "index": key[1], "valid": BATCH} | changes
    sizes = [images * SIDE * SIDE * 3, images * 8, images * 8]
    return Chunk(first=first, images=images, **fields), sizes


def arrive(prefetch: Prefetch, key: Key, first: int, **changes: int) -> Placement | None:
    placement = prefetch.place(*chunk(key, first, **changes), CHUNK)
    if placement is not None:
        prefetch.stored(placement)
    return placement


def arrive_whole(prefetch: Prefetch, key: Key, **changes: int) -> None:
    for first in CHUNK_FIRSTS:
        arrive(prefetch, key, first, **changes)


def want(prefetch: Prefetch, window: int = 4, samples: int = 70) -> list[Key]:
    return prefetch.want(window, samples, CHUNK)


def take_keys(prefetch: Prefetch) -> list[Key]:
    keys = []
    while (batch := prefetch.take()) is not None:
        keys.append(batch.key)
        prefetch.give_back(batch.buffer)
    return keys


def test_a_course_begins_at_any_step_and_goes_on_with_whole_epochs() -> None:
    prefetch = make_prefetch(rank=1, world_size=2, buffers=6)
    prefetch.begin(3, batches=6, step=2)
    assert want(prefetch, window=6) == [(3, 5), (4, 1), (4, 3), (4, 5), (5, 1), (5, 3)]
    prefetch.begin(4, batches=6, step=1)
    assert prefetch.take_releases() == [(3, 5), (4, 1)], "the rest is kept"
    assert want(prefetch, window=6) == [(5, 5), (6, 1)]


def test_nothing_is_wanted_before_an_epoch_begins() -> None:
    assert want(make_prefetch()) == []


def test_wants_fill_the_window_in_order_and_go_on_as_batches_complete() -> None:
    prefetch = make_prefetch()
    prefetch.begin(3, batches=10)
    assert want(prefetch) == [(3, 0), (3, 1), (3, 2), (3, 3)]
    assert want(prefetch) == []
    arrive_whole(prefetch, (3, 1))
    assert prefetch.take_releases() == [(3, 1)]
    assert want(prefetch) == [(3, 4)]
    arrive_whole(prefetch, (3, 2))
    assert want(prefetch) == [], "all five buffers are in use"


def test_batches_are_taken_in_order_whatever_the_order_of_arrival() -> None:
    prefetch = make_prefetch()
    prefetch.begin(0, batches=10)
    want(prefetch)
    pairs = [*itertools.product([(0, 0), (0, 1), (0, 2), (0, 3)], CHUNK_FIRSTS)]
    random.Random(5).shuffle(pairs)
    taken: list[Key] = []
    for key, first in pairs:
        assert arrive(prefetch, key, first) is not None
        taken += take_keys(prefetch)
    assert taken == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_the_course_runs_on_into_the_next_epoch() -> None:
    prefetch = make_prefetch(buffers=6)
    prefetch.begin(4, batches=3)
    assert want(prefetch, window=6) == [(4, 0), (4, 1), (4, 2), (5, 0), (5, 1), (5, 2)]


def test_beginning_the_epoch_that_was_fetched_ahead_keeps_what_is_there() -> None:
    prefetch = make_prefetch(buffers=6)
    prefetch.begin(4, batches=3)
    for key in want(prefetch, window=6):
        arrive_whole(prefetch, key)
    prefetch.take_releases()
    assert [prefetch.take() is not None for _ in range(3)] == [True] * 3
    prefetch.begin(5, batches=3)
    assert prefetch.take_releases() == []
    assert take_keys(prefetch) == [(5, 0), (5, 1), (5, 2)]


def test_beginning_another_epoch_releases_what_was_asked_for() -> None:
    prefetch = make_prefetch()
    prefetch.begin(4, batches=10)
    want(prefetch)
    arrive_whole(prefetch, (4, 0))
    assert prefetch.take_releases() == [(4, 0)]
    prefetch.begin(9, batches=10)
    assert prefetch.take_releases() == [(4, 1), (4, 2), (4, 3)], "(4, 0) was released already"
    assert want(prefetch) == [(9, 0), (9, 1), (9, 2), (9, 3)]
    assert arrive(prefetch, (4, 1), 0) is None
    assert prefetch.chunks_discarded == 1


def test_restarting_an_epoch_asks_again_from_its_start() -> None:
    prefetch = make_prefetch()
    prefetch.begin(0, batches=10)
    for key in want(prefetch):
        arrive_whole(prefetch, key)
    assert prefetch.take() is not None
    prefetch.take_releases()
    prefetch.begin(0, batches=10)
    assert want(prefetch)[0] == (0, 0)


def test_a_chunk_that_arrives_twice_is_discarded() -> None:
    prefetch = make_prefetch()
    prefetch.begin(0, batches=10)
    want(prefetch)
    assert arrive(prefetch, (0, 0), 3) is not None
    assert arrive(prefetch, (0, 0), 3) is None
    arrive_whole(prefetch, (0, 0))
    assert arrive(prefetch, (0, 0), 0) is None, "the batch is complete"
    assert prefetch.chunks_discarded == 3
    assert take_keys(prefetch) == [(0, 0)]


def test_a_lost_session_is_asked_for_everything_that_is_not_complete_from_the_start() -> None:
    prefetch = make_prefetch()
    prefetch.begin(0, batches=10)
    want(prefetch)
    arrive_whole(prefetch, (0, 1))
    arrive(prefetch, (0, 0), 0)
    prefetch.forget_requests()
    assert prefetch.take_releases() == [], "the new session knows nothing of the old one's"
    assert want(prefetch) == [(0, 0), (0, 2), (0, 3), (0, 4)]
    arrive(prefetch, (0, 0), 3)
    arrive(prefetch, (0, 0), 6)
    assert prefetch.take() is None, "the rows that came before the loss count no more"
    arrive(prefetch, (0, 0), 0)
    assert take_keys(prefetch) == [(0, 0), (0, 1)]


def test_a_new_session_with_a_smaller_window_is_not_asked_for_more() -> None:
    prefetch = make_prefetch()
    prefetch.begin(0, batches=10)
    want(prefetch)
    prefetch.forget_requests()
    assert want(prefetch, window=2) == [(0, 0), (0, 1)]
    arrive_whole(prefetch, (0, 0))
    assert want(prefetch, window=2) == [(0, 2)]


def test_a_batch_that_cannot_be_had_is_reported_in_its_turn_and_once() -> None:
    prefetch = make_prefetch()
    prefetch.begin(0, batches=10)
    want(prefetch)
    prefetch.failed((0, 1), "sample 12 is broken")
    assert prefetch.take_releases() == [(0, 1)]
    arrive_whole(prefetch, (0, 0))
    arrive_whole(prefetch, (0, 2))
    assert prefetch.take() is not None
    with pytest.raises(DatasetError, match=r"batch 1 of epoch 0 cannot be had: sample 12 is br"):
        prefetch.take()
    assert take_keys(prefetch) == [(0, 2)]


def test_the_valid_count_of_a_padded_batch_is_known_and_checked() -> None:
    prefetch = make_prefetch(split="val")
    prefetch.begin(0, batches=3)
    want(prefetch, samples=16)
    with pytest.raises(ProtocolError, match="says that 7 rows are real, it must be 2"):
        arrive(prefetch, (0, 2), 0)
    for index, valid in ((0, 7), (1, 7), (2, 2)):
        arrive_whole(prefetch, (0, index), valid=valid)
    batches = [prefetch.take() for _ in range(3)]
    assert [batch.valid for batch in batches if batch is not None] == [7, 7, 2]


def test_indices_past_the_end_are_padding_that_nobody_is_asked_for() -> None:
    prefetch = make_prefetch(split="val", rank=2, world_size=3)  # 4 batches: rank 2 has 2 and 5
    prefetch.begin(0, batches=4)
    assert want(prefetch, samples=25)[:2] == [(0, 2), (1, 2)]
    arrive_whole(prefetch, (0, 2))
    first, second = prefetch.take(), prefetch.take()
    assert first is not None
    assert second is not None
    assert (first.key, first.padding) == ((0, 2), False)
    assert (second.key, second.padding, second.valid) == ((0, 5), True, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": 1}, "3 rows from 1 on, which is no chunk of 3 in a batch of 7"),
        ({"first": 9, "images": 1}, "1 rows from 9 on"),
        ({"first": 0, "images": 2}, "2 rows from 0 on"),
        ({"first": 6, "images": 3}, "3 rows from 6 on"),
    ],
)
def test_chunks_that_do_not_fit_the_batch_are_refused(
    changes: dict[str, int], message: str
) -> None:
    prefetch = make_prefetch()
    prefetch.begin(0, batches=10)
    want(prefetch)
    first = changes.pop("first")
    with pytest.raises(ProtocolError, match=message):
        prefetch.place(*chunk((0, 0), first, **changes), CHUNK)


@pytest.mark.parametrize("sizes", [[], [3 * SIDE * SIDE * 3, 24], [1, 24, 24], [576, 24, 16]])
def test_frames_of_wrong_sizes_are_refused(sizes: list[int]) -> None:
    prefetch = make_prefetch()
    prefetch.begin(0, batches=10)
    want(prefetch)
    message, _ = chunk((0, 0), 0)
    with pytest.raises(ProtocolError, match="batch 0 of epoch 0 has frames of"):
        prefetch.place(message, sizes, CHUNK)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    buffers=st.integers(1, 6),
    window=st.integers(1, 6),
    world_size=st.integers(1, 3),
    batches=st.integers(1, 5),
)
def test_any_mixture_of_events_gives_the_course_and_nothing_else(
    seed: int, buffers: int, window: int, world_size: int, batches: int
) -> None:
    """A node that answers late, twice and out of order, loses sessions, and a fickle consumer."""
    chance = random.Random(seed)
    prefetch = make_prefetch(split="val", world_size=world_size, buffers=buffers)
    indices = rank_indices(batches, 0, world_size, prefetch.recipe.last_batch)
    wanted: set[Key] = set()  # by the node's account
    in_flight: list[tuple[Key, int]] = []
    owners: dict[int, Key] = {}  # of buffers that the consumer holds
    expected = iter(())
    for _ in range(150):
        match chance.choice(["arrive", "arrive", "take", "give", "begin", "lose", "turn", "turn"]):
            case "arrive" if in_flight:
                key, first = in_flight.pop(chance.randrange(len(in_flight)))
                placement = arrive(prefetch, key, first)
                assert placement is None or placement.buffer not in owners
                if chance.random() < 0.3:
                    in_flight.append((key, first))
            case "take" if (batch := prefetch.take()) is not None:
                assert batch.key == next(expected)
                assert batch.buffer not in owners
                owners[batch.buffer] = batch.key
            case "give" if owners:
                prefetch.give_back(owners.popitem()[0])
            case "begin" if chance.random() < 0.3:
                epoch = chance.randrange(4)
                prefetch.begin(epoch, batches)
                expected = ((e, i) for e in itertools.count(epoch) for i in indices)
            case "lose" if chance.random() < 0.3:
                prefetch.forget_requests()
                wanted.clear()
                in_flight.clear()
            case "turn":
                wants = prefetch.want(window, batches * BATCH, CHUNK)
                for key in prefetch.take_releases():
                    wanted.remove(key)
                for key in wants:
                    assert key not in wanted
                    assert key[1] < batches
                    wanted.add(key)
                    in_flight += [(key, first) for first in CHUNK_FIRSTS]
                assert len(wanted) <= window
            case _:
                pass


class Pages:
    """Stands in for a lent slot; ``holds`` is the batch that the node has in it now."""

    def __init__(self) -> None:
        self.holds: tuple[Key, int] | None = None


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    buffers=st.integers(1, 6),
    window=st.integers(1, 6),
    batches=st.integers(1, 5),
)
def test_a_lent_slot_is_never_the_nodes_to_write_while_it_is_read(
    seed: int, buffers: int, window: int, batches: int
) -> None:
    """A node that reuses slots as soon as it may, word of them that comes late, a fickle consumer.

    What the client reads is what the node has in the slot, from taking to giving back.
    """
    chance = random.Random(seed)
    prefetch = make_prefetch(split="val", buffers=buffers)
    indices = rank_indices(batches, 0, 1, prefetch.recipe.last_batch)
    slots = [Pages() for _ in range(window)]  # of this session
    wanted: dict[Key, tuple[int, Pages]] = {}  # by the node's account, with the request's number
    word: list[Lent] = []  # on its way, in order
    owners: dict[int, tuple[Key, Pages, tuple[Key, int] | None]] = {}
    expected = iter(())
    for _ in range(200):
        match chance.choice(["arrive", "arrive", "take", "give", "begin", "lose", "turn", "turn"]):
            case "arrive" if word:
                message = word.pop(0)
                prefetch.lend(message, slots[message.slot])  # type: ignore[arg-type]
            case "take" if (batch := prefetch.take()) is not None:
                assert batch.key == next(expected)
                pages: Pages = batch.lent  # type: ignore[assignment]
                assert pages.holds is not None
                assert pages.holds[0] == batch.key
                owners[batch.buffer] = batch.key, pages, pages.holds
            case "give" if owners:
                buffer, (_, pages, held) = owners.popitem()
                assert pages.holds == held, "nobody wrote there meanwhile"
                prefetch.give_back(buffer)
            case "begin" if chance.random() < 0.4:
                epoch = chance.randrange(3)
                prefetch.begin(epoch, batches)
                expected = ((e, i) for e in itertools.count(epoch) for i in indices)
            case "lose" if chance.random() < 0.2:
                prefetch.forget_requests()
                wanted.clear()
                word.clear()
                slots = [Pages() for _ in range(window)]  # another session has other memory
            case "turn":
                wants = prefetch.want(window, batches * BATCH, CHUNK)
                for key in prefetch.take_releases():
                    wanted.pop(key)[1].holds = None
                for key in wants:
                    assert key not in wanted
                    free = [slot for slot in slots if slot.holds is None]
                    pages = chance.choice(free)
                    pages.holds = key, prefetch.request
                    wanted[key] = prefetch.request, pages
                    word.append(
                        Lent(
                            session=1,
                            request=prefetch.request,
                            epoch=key[0],
                            index=key[1],
                            slot=slots.index(pages),
                            valid=BATCH,
                        )
                    )
                assert len(wanted) <= window
            case _:
                pass
