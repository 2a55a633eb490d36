"""Slots with several crops a sample and with sizes by epoch: no part overlaps another."""

from typing import Any, get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.plan.packing import Packing, pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.wire.slot_layout import PAGE_BYTES, SlotLayout

labels = st.sampled_from(
    [INDEX_LABELS, LabelSpec(kind="multi", width=3), LabelSpec(kind="float", width=2)]
)
crops = st.lists(st.tuples(st.integers(1, 3), st.integers(8, 12)), max_size=3)
sizes = st.dictionaries(st.integers(1, 9), st.integers(8, 24), max_size=4)


@given(
    crops=crops,
    sizes=sizes,
    labels=labels,
    batch_size=st.integers(1, 5),
    packing=st.sampled_from(get_args(Packing)),
)
def test_no_two_parts_overlap_in_any_epoch(
    crops: list[tuple[int, int]],
    sizes: dict[int, int],
    labels: LabelSpec,
    batch_size: int,
    packing: str,
) -> None:
    fields: dict[str, Any] = {"crops": crops} if crops else {"image_size": {0: 10, **sizes}}
    recipe = Recipe.for_split("train", batch_size=batch_size, packing=packing, **fields)
    whole = SlotLayout.of_recipe(recipe, labels, slots=2)
    image_shape = pixel_layout_of(recipe.packing).image_shape
    memory = np.zeros(whole.total_bytes, np.uint8)
    for epoch in range(11):
        layout, now = whole.at(epoch), recipe.at(epoch)
        assert (layout.slot_bytes, layout.total_bytes) == (whole.slot_bytes, whole.total_bytes)
        memory[:] = 0
        used_bytes = 0
        for slot in range(2):
            for first in range(batch_size):
                chunk = layout.chunk(memory, slot, first, 1)
                images = (chunk.pixels, *chunk.further)
                assert [each.shape for each in images] == [
                    (1, *image_shape(size)) for size in now.crop_sizes
                ]
                for part in (*images, chunk.labels, chunk.sample_ids):
                    start = part.ctypes.data - memory.ctypes.data
                    assert slot * whole.slot_bytes <= start
                    assert start + part.nbytes <= (slot + 1) * whole.slot_bytes
                    assert start % part.dtype.itemsize == 0
                    raw = part.reshape(-1).view(np.uint8)
                    assert not raw.any(), "no other part lies here"
                    raw[:] = 1
                    used_bytes += raw.nbytes
        assert int(memory.sum()) == used_bytes == 2 * layout.batch_bytes
        check_groups(layout, now, memory[: layout.pixel_bytes])
    assert whole.slot_bytes % PAGE_BYTES == 0
    alone = [SlotLayout.of_recipe(now, labels, slots=1) for now in recipe.over_epochs()]
    assert whole.slot_bytes == max(layout.slot_bytes for layout in alone)


def check_groups(layout: SlotLayout, recipe: Recipe, pixels: NDArray[np.uint8]) -> None:
    """A group's array has its crops, one after the other."""
    padded = np.zeros(layout.slot_bytes, np.uint8)
    padded[: len(pixels)] = pixels
    rows = layout.chunk(padded, 0, 0, layout.batch_size)
    in_groups = [crop for group in layout.groups(padded[: len(pixels)]) for crop in group]
    assert len(in_groups) == len(recipe.crop_sizes)
    for crop, mine in zip((rows.pixels, *rows.further), in_groups, strict=True):
        assert crop.ctypes.data == mine.ctypes.data
        assert crop.shape == mine.shape
    for group in layout.groups(padded[: len(pixels)]):
        assert (group.ctypes.data - padded.ctypes.data) % 64 == 0


def test_a_plain_recipe_has_the_slots_of_before() -> None:
    """Clients and feeders of any version map them."""
    recipe = Recipe.for_split("train", batch_size=3, image_size=9)
    layout = SlotLayout.of_recipe(recipe, INDEX_LABELS, slots=2)
    assert (layout.pixel_bytes, layout.batch_bytes) == (729, 729 + 3 * 16)
    memory = np.zeros(layout.total_bytes, np.uint8)
    chunk = layout.chunk(memory, 1, 0, 3)
    starts = [
        part.ctypes.data - memory.ctypes.data - PAGE_BYTES
        for part in (chunk.pixels, chunk.labels, chunk.sample_ids)
    ]
    assert starts == [0, 736, 760]
    assert layout.at(7) is layout
