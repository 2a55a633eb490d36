"""The decoded cache's file: one range for each key, whichever process fills it or dies."""

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.sample.cache_file import DecodedCache
from feeder.sample.cache_plan import (
    ENTRY_BYTES,
    PAGE_BYTES,
    CachePlan,
    DecodedSize,
    FillAllowance,
    aligned_bytes,
    plan_cache,
)
from tests.sample.cache_process import (
    SOURCE,
    content_of,
    fill,
    find,
    hash_of,
    process,
    read,
    size_of,
)

ROOM = 4 << 20


def plan_of(total_bytes: int = ROOM, entries: int = 512) -> CachePlan:
    return CachePlan(
        total_bytes=total_bytes, entries=entries, picture_share=1.0, dataset_bytes={"d": 1}
    )


@pytest.fixture
def cache() -> Iterator[DecodedCache]:
    made = DecodedCache.create(plan_of())
    yield made
    made.close()


def check(cache: DecodedCache, *keys: int) -> None:
    """Each key is published with its content."""
    for key, offset in zip(keys, find(cache, *keys), strict=True):
        assert offset >= 0, f"key {key} is missing"
        assert np.array_equal(read(cache, offset, size_of(key)), content_of(key))


def mappings() -> list[Any]:
    """Return this process's mappings of decoded caches."""
    maps = psutil.Process().memory_maps(grouped=False)
    return [each for each in maps if "feeder-decoded" in each.path]


def resident_bytes() -> int:
    """Return how many bytes of decoded caches' pixels are resident in this process."""
    return sum(each.rss for each in mappings() if "w" not in each.perms)


def decoded_bytes(sizes: list[DecodedSize]) -> float:
    return sum(size.total_bytes for size in sizes)


@given(
    budget=st.integers(0, 1 << 44),
    sizes=st.lists(
        st.builds(
            DecodedSize,
            samples=st.integers(1, 20_000_000),
            picture_bytes=st.floats(64, 1e9),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_plan_never_exceeds_its_budget(budget: int, sizes: list[DecodedSize]) -> None:
    named = {str(number): size for number, size in enumerate(sizes)}
    plan, of_two = plan_cache(budget, named), plan_cache(budget, named, nodes=2)
    if plan is None:
        return
    assert of_two is not None
    assert of_two.total_bytes == plan.total_bytes
    assert of_two.picture_share == pytest.approx(min(1.0, 2 * budget / decoded_bytes(sizes)))
    assert plan.total_bytes <= budget
    assert plan.pixels_at >= PAGE_BYTES + plan.entries * ENTRY_BYTES
    assert plan.pixels_at % PAGE_BYTES == 0
    assert 0 < plan.pixel_bytes == plan.total_bytes - plan.pixels_at
    assert plan.entries & (plan.entries - 1) == 0
    assert 0 < plan.picture_share <= 1
    assert sum(plan.dataset_bytes.values()) <= budget
    part_bytes, samples = plan.dataset_bytes["0"], sizes[0].samples
    row_share = plan.row_share("0", samples, 100)
    assert 0 < row_share <= 1 or part_bytes == 0
    assert row_share * samples * 100 <= part_bytes * (1 + 1e-9), "its rows fit into its part"


@settings(max_examples=20)
@given(
    shown=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4),
    share=st.floats(0.01, 1.0),
    images=st.integers(50, 150),
)
def test_filling_costs_each_epoch_little_and_completes(
    shown: list[float], share: float, images: int
) -> None:
    """Whatever part of its image a crop needs, even if none ever needs all."""
    allowance, whole_px, filled, let_in = (
        FillAllowance(1.0),
        1000,
        set(),
        max(1, int(share * images)),
    )
    spent: list[float] = []
    for epoch in range(60):
        spent.append(0.0)
        for image in range(images):
            needed_px = int(whole_px * shown[(7 * image + epoch) % len(shown)])
            if image in filled:
                allowance.earn(0.0, needed_px)
                continue
            spent[-1] += needed_px
            allowance.earn(needed_px, 0.0)
            if image < let_in and allowance.spend(whole_px, needed_px):
                spent[-1] += whole_px - needed_px
                filled.add(image)
        without_px = sum(
            int(whole_px * shown[(7 * image + epoch) % len(shown)]) for image in range(images)
        )
        saved_up_px = 0 if epoch == 0 else 8 * 1.2 * whole_px
        assert spent[-1] <= 1.08 * without_px + saved_up_px
    if min(shown) > 0.3:
        assert len(filled) == let_in


def test_a_cache_for_all_images_fills_within_four_epochs() -> None:
    allowance, filled, draw = FillAllowance(1.0), set[int](), random.Random(0)
    for _ in range(4):
        for image in range(2000):
            needed_px = int(draw.uniform(80, 1000))
            if image in filled:
                allowance.earn(0.0, needed_px)
                continue
            allowance.earn(needed_px, 0.0)
            if allowance.spend(1000, needed_px):
                filled.add(image)
    assert len(filled) > 0.99 * 2000


def test_a_small_share_of_a_dataset_is_filled_at_first_sight() -> None:
    for share, at_once in ((0.02, True), (0.07, True), (0.08, False)):
        allowance = FillAllowance(share)
        allowance.earn(100.0, 0.0)
        assert allowance.spend(1000, 100) == at_once


@settings(max_examples=40)
@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["fill", "abandon", "find"]), st.integers(0, 60)), max_size=60
    ),
    room=st.integers(1, 60_000),
)
def test_cache_is_a_dictionary_with_a_budget(operations: list[tuple[str, int]], room: int) -> None:
    plan = plan_of(2 * PAGE_BYTES + 64 * ENTRY_BYTES // PAGE_BYTES * PAGE_BYTES + room, entries=64)
    cache, published, reserved = DecodedCache.create(plan), set(), {}
    try:
        for what, key in operations:
            if what == "find":
                assert (find(cache, key)[0] >= 0) == (key in published)
                continue
            remaining = plan.pixel_bytes - sum(reserved.values())
            has_room = key in reserved or aligned_bytes(size_of(key)) <= remaining
            entry = cache.claim(SOURCE, hash_of(key), key, size_of(key))
            # A size that was refused stays refused, as the room only shrinks.
            assert entry is None or (has_room and key not in published)
            if entry is None:
                continue
            reserved[key] = aligned_bytes(size_of(key))
            assert cache.claim(SOURCE, hash_of(key), key, size_of(key)) == entry, "still ours"
            if what == "abandon":
                cache.abandon(entry)
            else:
                assert cache.write(entry, content_of(key))
                cache.publish(entry)
                published.add(key)
        check(cache, *published)
        assert cache.entries == len(published)
        assert cache.used_bytes == plan.pixels_at + sum(reserved.values()) <= plan.total_bytes
        assert os.fstat(cache.fileno()).st_size == plan.total_bytes
        other = cache.find(
            SOURCE + 1, np.arange(61, dtype=np.uint64) // 3 * 3, np.arange(61, dtype=np.int64)
        )
        assert (other == -1).all(), "another source's"
    finally:
        cache.close()


def test_processes_that_race_fill_every_key_once(cache: DecodedCache) -> None:
    keys = 150
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(process(cache, "race", seed, keys)) for seed in range(3)]
        pipes = [(child.stdin, child.stdout) for child in children if child.stdin and child.stdout]
        assert [out.readline() for _, out in pipes] == ["ready\n"] * 3
        for into, _ in pipes:
            into.write("go\n")
            into.flush()
        fills = sum(int(out.readline()) for _, out in pipes)
        assert [child.wait(30) for child in children] == [0] * 3
    # A process skips a key that another one is filling.
    missing = [key for key, offset in enumerate(find(cache, *range(keys))) if offset < 0]
    assert not missing
    assert fills == keys == cache.entries
    assert cache.used_bytes - cache.plan.pixels_at == sum(
        aligned_bytes(size_of(key)) for key in range(keys)
    )
    check(cache, *range(keys))


def test_next_filler_completes_the_entry_of_a_killed_one(cache: DecodedCache) -> None:
    with process(cache, "hold", 7) as holder:
        assert holder.stdout is not None
        entry = int(holder.stdout.readline())
        assert not fill(cache, 7), "another process fills it"
        assert find(cache, 7) == [-1]
        assert fill(cache, 8)
        used_bytes = cache.used_bytes
        holder.send_signal(signal.SIGKILL)
        assert holder.wait(30) == -signal.SIGKILL
        assert find(cache, 7) == [-1], "only half of it is written"
        assert cache.claim(SOURCE, hash_of(7), 7, size_of(7)) == entry
        cache.abandon(entry)
        assert fill(cache, 7)
        assert cache.used_bytes == used_bytes, "in the same range"
    check(cache, 7, 8)


@pytest.mark.parametrize("store", range(10))
def test_process_killed_at_any_store_loses_nothing(cache: DecodedCache, store: int) -> None:
    assert fill(cache, 1)
    with process(cache, "die", 2, store) as child:
        output, _ = child.communicate(timeout=30)
    assert (child.returncode == -signal.SIGKILL) == (store < 9), output
    assert fill(cache, 3), "the kernel released the directory's lock"
    was_published = find(cache, 2)[0] >= 0
    assert was_published == (store >= 8)
    assert fill(cache, 2) != was_published
    check(cache, 1, 2, 3)
    assert cache.used_bytes - cache.plan.pixels_at == sum(
        aligned_bytes(size_of(key)) for key in (1, 2, 3)
    )


def test_lack_of_memory_ends_filling(cache: DecodedCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    entry = cache.claim(SOURCE, 0, 5, 1000)
    assert entry is not None
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        assert not cache.write(entry, np.zeros(1000, np.uint8))
    cache.abandon(entry)
    assert cache.find(SOURCE, np.zeros(1, np.uint64), np.array([5])).tolist() == [-1]
    assert not fill(cache, 6)


def test_pixels_are_read_only_in_a_sealed_file_and_no_more_than_were_claimed(
    cache: DecodedCache,
) -> None:
    assert fill(cache, 1)
    assert not read(cache, find(cache, 1)[0], 10).flags.writeable
    with pytest.raises(PermissionError):
        os.ftruncate(cache.fileno(), 0)
    entry = cache.claim(SOURCE, 0, 5, 1000)
    assert entry is not None
    with pytest.raises(ValueError, match="do not fit"):
        cache.write(entry, np.zeros(1025, np.uint8))


def test_pages_are_unmapped_after_much_reading_and_mapped_again(
    cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(fill(cache, key) for key in range(20))
    check(cache, *range(20))
    before = resident_bytes()
    monkeypatch.setattr("feeder.sample.cache_file._MAPPED_BYTES_MAX", 10_000)
    cache.pixels(10_001)
    assert resident_bytes() <= before - 10_000
    check(cache, *range(20))
