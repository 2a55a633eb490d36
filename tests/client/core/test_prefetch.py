"""The client's book-keeping, without socket, thread or clock.

The first tests have one link; those about several come after them.
"""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.client.core.prefetch import BatchSequence, Prefetch
from feeder.errors import ProtocolError
from feeder.plan.recipe import Recipe
from feeder.wire.messages import BatchKey, Chunk, Failed
from tests.support.client_shell import lent, open_keys

BATCH, SIDE, CHUNK = 7, 8, 3
CHUNK_FIRSTS = (0, 3, 6)
A, B, C = 0, 1, 2  # links


def make_prefetch(*, split: str = "train", buffers: int = 5) -> Prefetch:
    recipe = Recipe.for_split(
        "val" if split == "val" else "train", batch_size=BATCH, image_size=SIDE
    )
    return Prefetch(recipe, buffers=buffers)


def chunk(key: BatchKey, first: int, **changes: int) -> tuple[Chunk, list[int]]:
    images = changes.pop("images", min(CHUNK, BATCH - first))
    fields = {"session": 1, "epoch": key[0], "index": key[1], "valid": BATCH} | changes
    sizes = [images * SIDE * SIDE * 3, images * 8, images * 8]
    return Chunk(first=first, images=images, **fields), sizes


def arrive(
    prefetch: Prefetch, key: BatchKey, first: int, link: int = A, **changes: int
) -> int | None:
    message, sizes = chunk(key, first, **changes)
    buffer = prefetch.find_buffer(link, message, sizes)
    if buffer is not None:
        prefetch.stored(link, message)
    return buffer


def arrive_whole(prefetch: Prefetch, key: BatchKey, link: int = A, **changes: int) -> None:
    for first in CHUNK_FIRSTS:
        arrive(prefetch, key, first, link, **changes)


def ask(prefetch: Prefetch, link: int, key: BatchKey, request: int = 1) -> None:
    prefetch.record_request(link, key, request, 0.0)


def want(
    prefetch: Prefetch, link: int = A, *, window: int = 4, samples: int = 70
) -> list[BatchKey]:
    """Request on a link all batches that are on none, up to its window; return them."""
    prefetch.extend(samples)
    keys = []
    for key in open_keys(prefetch):
        batch = prefetch.held[key]
        if not batch.requests and link not in batch.failures and prefetch.load(link) < window:
            ask(prefetch, link, key)
            keys.append(key)
    return keys


def lend(prefetch: Prefetch, link: int, index: int) -> bool:
    """Lend a batch; return whether that answered a request."""
    return prefetch.lend(link, lent(index, 0, valid=BATCH), object()) is not None


def fail(prefetch: Prefetch, link: int, key: BatchKey, reason: str) -> None:
    epoch, index = key
    word = Failed(session=1, epoch=epoch, index=index, code="d", message=reason)
    prefetch.failed(link, word)


def take_keys(prefetch: Prefetch) -> list[BatchKey]:
    keys = []
    while (batch := prefetch.take()) is not None:
        keys.append(batch.key)
        prefetch.return_buffer(batch.buffer)
    return keys


def test_a_sequence_begins_at_any_step_and_continues_with_whole_epochs() -> None:
    prefetch = make_prefetch(buffers=6)
    assert want(prefetch) == [], "before a sequence begins"
    prefetch.begin(BatchSequence(3, range(1, 6, 2), step=2))
    assert want(prefetch, window=6) == [(3, 5), (4, 1), (4, 3), (4, 5), (5, 1), (5, 3)]
    arrive_whole(prefetch, (4, 3))
    prefetch.begin(BatchSequence(4, range(1, 6, 2), step=1))
    assert prefetch.releases.pop(A, []) == [(4, 3), (3, 5), (4, 1)], "the rest is kept"
    assert want(prefetch, window=6) == [(5, 5), (6, 1)]
    assert take_keys(prefetch) == [(4, 3)]


@pytest.mark.parametrize(
    ("indices", "samples", "requested", "valid"),
    [
        (range(3), 16, [(0, 0), (0, 1), (0, 2)], [7, 7, 2]),
        (range(2, 6, 3), 25, [(0, 2)], [7, 0]),  # of 4 batches: 5 is past the end
    ],
)
def test_padding_is_known_and_not_requested(
    indices: range, samples: int, requested: list[BatchKey], valid: list[int]
) -> None:
    prefetch = make_prefetch(split="val")
    prefetch.begin(BatchSequence(0, indices))
    assert [key for key in want(prefetch, samples=samples) if key[0] == 0] == requested
    for key, rows in zip(requested, valid, strict=False):
        arrive_whole(prefetch, key, valid=rows)
    batches = [prefetch.take() for _ in indices]
    assert [batch.valid for batch in batches if batch is not None] == valid


@pytest.mark.parametrize(
    ("first", "changes", "sizes", "message"),
    [
        (9, {"images": 1}, None, "1 rows from row 9, the batch has 7 in all"),
        (7, {"images": 1}, None, "1 rows from row 7"),
        (6, {"images": 3}, None, "3 rows from row 6"),
        (0, {"images": 8}, None, "8 rows from row 0"),
        (0, {"valid": 2}, None, "counts 2 real rows, it must be 7"),
        (0, {}, [], "batch 0 of epoch 0 has frames of"),
        (0, {}, [3 * SIDE * SIDE * 3, 24], "has frames of"),
        (0, {}, [1, 24, 24], "has frames of"),
        (0, {}, [576, 24, 16], "has frames of"),
    ],
)
def test_chunks_that_do_not_fit_the_batch_are_refused(
    first: int, changes: dict[str, int], sizes: list[int] | None, message: str
) -> None:
    prefetch = make_prefetch()
    prefetch.begin(BatchSequence(0, range(10)))
    want(prefetch)
    announced, right = chunk((0, 0), first, **changes)
    with pytest.raises(ProtocolError, match=message):
        prefetch.find_buffer(A, announced, right if sizes is None else sizes)


@pytest.mark.parametrize(
    ("fields", "epoch", "images"),
    [
        ({"crops": [[2, 16], [1, 8]]}, 5, [768, 768, 192]),
        ({"crops": [[2, 16], [1, 8]], "packing": "uint8-hwc-rgbx"}, 0, [1024, 1024, 256]),
        ({"image_size": {0: 16, 3: 8}}, 2, [768]),
        ({"image_size": {0: 16, 3: 8}}, 3, [192]),
    ],
    ids=str,
)
def test_a_chunk_has_a_frame_for_each_crop_in_the_size_of_its_epoch(
    fields: dict[str, Any], epoch: int, images: list[int]
) -> None:
    prefetch = Prefetch(Recipe.for_split("train", batch_size=BATCH, **fields), buffers=2)
    prefetch.begin(BatchSequence(epoch, range(10)))
    want(prefetch)
    announced, _ = chunk((epoch, 0), 0)
    rows = announced.images
    right = [*(rows * size for size in images), rows * 8, rows * 8]
    assert prefetch.find_buffer(A, announced, right) is not None
    for at in range(len(right)):
        for wrong in ([*right[:at], *right[at + 1 :]], [*right[:at], 1, *right[at:]]):
            with pytest.raises(ProtocolError, match=f"of epoch {epoch} has frames of"):
                prefetch.find_buffer(A, announced, wrong)
        longer = [size + (number == at) for number, size in enumerate(right)]
        with pytest.raises(ProtocolError, match="has frames of"):
            prefetch.find_buffer(A, announced, longer)


@given(st.data())
def test_a_batch_may_be_cut_anywhere_and_is_whole_with_its_last_row(data: st.DataObject) -> None:
    """Also if late chunks of a former request come first, which was cut otherwise."""

    def cut() -> list[range]:
        edges = sorted({0, BATCH} | data.draw(st.sets(st.integers(1, BATCH - 1))))
        chunks = [range(first, end) for first, end in itertools.pairwise(edges)]
        return data.draw(st.permutations(chunks))

    prefetch = make_prefetch()
    prefetch.begin(BatchSequence(0, range(10)))
    want(prefetch)
    former = cut()
    late = former[: data.draw(st.integers(0, len(former) - 1))]
    missing = set(range(BATCH))
    for rows in late + cut():
        buffer = arrive(prefetch, (0, 0), rows.start, images=len(rows))
        assert (buffer is not None) == bool(missing & {*rows})
        missing -= {*rows}
        assert bool(prefetch.ready) == (not missing)
        if not missing:
            break
    assert take_keys(prefetch) == [(0, 0)]


# Several links


def share(buffers: int = 5) -> Prefetch:
    """Return one whose first batch is requested on A and B."""
    prefetch = make_prefetch(buffers=buffers)
    prefetch.begin(BatchSequence(0, range(10)))
    prefetch.extend(70)
    ask(prefetch, A, (0, 0))
    ask(prefetch, B, (0, 0))
    return prefetch


def test_a_lost_link_leaves_the_requests_on_others() -> None:
    prefetch = share()
    arrive(prefetch, (0, 0), 0, B)
    prefetch.forget(A)
    assert prefetch.load(A) == 0
    assert prefetch.load(B) == 1
    arrive(prefetch, (0, 0), 3, B)
    arrive(prefetch, (0, 0), 6, B)
    assert take_keys(prefetch) == [(0, 0)]
    assert prefetch.releases.pop(A, []) == [], "its session is over"
    assert prefetch.releases.pop(B, []) == [(0, 0)]


def test_a_link_that_comes_back_may_be_asked_for_a_batch_that_failed() -> None:
    prefetch = share()
    fail(prefetch, A, (0, 0), "disk of a")
    prefetch.forget(A)
    assert not prefetch.held[0, 0].failures


def test_a_failure_or_another_loan_after_the_loan_of_a_batch_is_ignored() -> None:
    prefetch = share()
    assert lend(prefetch, A, 0)
    assert not lend(prefetch, B, 0), "it is slower"
    assert not lend(prefetch, A, 0), "it is a duplicate"
    assert prefetch.lent == 1
    fail(prefetch, A, (0, 0), "disk of a")
    assert prefetch.releases.pop(A, []) == [], "the slot is still to be read"
    assert take_keys(prefetch) == [(0, 0)]
    assert prefetch.releases.pop(A, []) == [(0, 0)]


def test_a_lent_batch_can_be_reclaimed_for_an_earlier_one() -> None:
    prefetch = share()
    for index in (1, 2):
        ask(prefetch, B, (0, index))
        lend(prefetch, B, index)
    assert not prefetch.reclaim(B, (0, 2)), "nothing comes after it"
    assert not prefetch.reclaim(A, (0, 0)), "this one has lent nothing"
    assert prefetch.reclaim(B, (0, 0))
    assert prefetch.releases.pop(B, []) == [(0, 2)]
    assert prefetch.lent == 1
    assert open_keys(prefetch) == [(0, 0), (0, 2), (0, 3), (0, 4)]
    assert not lend(prefetch, B, 2), "the node has that slot back"
