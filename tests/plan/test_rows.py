"""Rows of a batch, their labels and pixels: what is encoded comes back; padding looks like none."""

import math
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.labels import FLOAT_WIDTH_MAX, MULTI_WIDTH_MAX, LabelSpec
from feeder.plan.packing import (
    Packing,
    pack_levels,
    pixel_layout_of,
    unpack_levels,
)
from feeder.plan.recipe import Recipe
from feeder.wire.slot_layout import PAGE_BYTES, SlotLayout

specs = st.one_of(
    st.builds(LabelSpec, kind=st.sampled_from(["index", "none"])),
    st.builds(LabelSpec, kind=st.sampled_from(["multi", "float"]), width=st.integers(1, 40)),
)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
INDEX, THREE = LabelSpec(), LabelSpec(kind="multi", width=3)
ONE_FLOAT, TWO_FLOATS = LabelSpec(kind="float"), LabelSpec(kind="float", width=2)


def _decode(labels: LabelSpec, stored: list[bytes]) -> np.ndarray:
    assert {len(each) for each in stored} == {labels.stored_bytes}
    assert not any(labels.find_fault(each) for each in stored)
    rows = np.frombuffer(b"".join(stored), np.uint8).reshape(len(stored), labels.stored_bytes)
    out = np.full((len(stored), *labels.row_shape), labels.padding, labels.dtype)
    labels.decode_rows(rows, out)
    return out


@given(width=st.integers(1, 40), data=st.data())
def test_labels_come_back_bit_for_bit(width: int, data: st.DataObject) -> None:
    multi, of_floats = (LabelSpec(kind=kind, width=width) for kind in ("multi", "float"))  # type: ignore[arg-type]
    classes = st.lists(st.integers(0, width - 1))
    samples = data.draw(st.lists(classes, min_size=1, max_size=4))
    rows = _decode(multi, [multi.encode_multi(each) for each in samples])
    assert multi.stored_bytes == -(-width // 8)
    assert [np.flatnonzero(row).tolist() for row in rows] == [sorted({*each}) for each in samples]
    assert set(rows.flatten().tolist()) <= {0, 1}

    values = st.lists(floats, min_size=width, max_size=width)
    of_samples = data.draw(st.lists(values, min_size=1, max_size=4))
    rows = _decode(of_floats, [of_floats.encode_floats(each) for each in of_samples])
    assert rows.shape == (len(of_samples), width)
    assert rows.tobytes() == np.array(of_samples, np.float32).tobytes()


def test_class_c_is_bit_c_from_the_lowest() -> None:
    labels = LabelSpec(kind="multi", width=12)
    assert labels.encode_multi([0, 9]) == b"\x01\x02"
    assert labels.encode_multi([]) == b"\0\0"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(
            (classes, r"there is no class -?\d+: classes are 0 \.\. 2")
            for classes in ([3], [-1], [0, 2**70], [0, 3])
        ),
        *(
            (values, rf"it has {len(values)} values, the dataset's samples 2")
            for values in ([1.0], [1.0, 2.0, 3.0], [])
        ),
        *(
            ([0.0, value], "finite numbers in the range of float32")
            for value in (math.nan, math.inf, -math.inf, 1e39, -1e300)
        ),
    ],
)
def test_labels_that_cannot_be_stored_are_refused(values: list[Any], message: str) -> None:
    encode = THREE.encode_multi if "class" in message else TWO_FLOATS.encode_floats
    with pytest.raises(ValueError, match=message):
        encode(values)


@pytest.mark.parametrize(
    ("labels", "row", "fault"),
    [
        (INDEX, b"", None),
        (THREE, b"\x07", None),
        (THREE, b"\x08", "its labels have a bit above the 3 classes"),
        (LabelSpec(kind="multi", width=8), b"\xff", None),
        (ONE_FLOAT, np.array([math.nan], "<f4").tobytes(), "its labels are not finite numbers"),
    ],
)
def test_faults_of_stored_rows_are_named(labels: LabelSpec, row: bytes, fault: str | None) -> None:
    assert labels.find_fault(row) == fault


@given(specs)
def test_no_row_of_a_sample_equals_padding_and_a_kind_survives_encoding(labels: LabelSpec) -> None:
    padding = np.full((1, *labels.row_shape), labels.padding, labels.dtype)
    if labels.kind == "float":
        assert np.isnan(padding).all()
    else:
        assert padding.flatten()[0] == (255 if labels.kind == "multi" else -100)
    assert labels.row_bytes == padding.nbytes
    assert len(padding.shape) == (2 if labels.kind in ("multi", "float") else 1)
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(labels), type=LabelSpec) == labels


@pytest.mark.parametrize(
    ("labels", "classes", "text"),
    [
        (INDEX, 1000, "1,000 classes"),
        (LabelSpec(kind="multi", width=1234), 1234, "any of 1,234 classes"),
        (TWO_FLOATS, 0, "2 floats a sample"),
        (LabelSpec(kind="none"), 0, "no labels"),
    ],
)
def test_a_kind_is_described_with_its_size(labels: LabelSpec, classes: int, text: str) -> None:
    assert labels.describe(classes) == text


@pytest.mark.parametrize(
    ("kind", "width", "message"),
    [
        ("index", 2, "width of index must be 1, got 2"),
        ("none", 0, "width of none must be 1, got 0"),
        ("multi", 0, "a whole number 1 .. 65536, got 0"),
        ("multi", MULTI_WIDTH_MAX + 1, "a whole number 1 .. 65536, got 65537"),
        ("float", FLOAT_WIDTH_MAX + 1, "a whole number 1 .. 4096, got 4097"),
        ("float", 1.5, "a whole number 1 .. 4096, got 1.5"),
        ("text", 1, "kind must be index or multi or float or none, got 'text'"),
    ],
)
def test_impossible_labels_are_refused(kind: str, width: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LabelSpec(kind=kind, width=width)  # type: ignore[arg-type]


@given(
    labels=specs,
    batch_size=st.integers(1, 9),
    image_size=st.integers(8, 12),
    packing=st.sampled_from(get_args(Packing)),
)
def test_slots_hold_all_parts_of_every_kind_without_overlap(
    labels: LabelSpec, batch_size: int, image_size: int, packing: str
) -> None:
    recipe = Recipe.for_split(
        "train", batch_size=batch_size, image_size=image_size, packing=packing
    )
    layout = SlotLayout.of_recipe(recipe, labels, slots=2)
    memory = np.zeros(layout.total_bytes, np.uint8)
    image = packed_by_hand(np.zeros((1, image_size, image_size, 3), np.uint8), packing)
    used_bytes = 0
    for slot in range(2):
        for first in range(batch_size):
            chunk = layout.chunk(memory, slot, first, 1)
            assert (chunk.pixels.shape, chunk.pixels.dtype) == (image.shape, image.dtype)
            assert chunk.labels.shape == (1, *labels.row_shape)
            assert chunk.labels.dtype == labels.dtype
            for part in (chunk.pixels, chunk.labels, chunk.sample_ids):
                start = part.ctypes.data - memory.ctypes.data
                assert start % part.dtype.itemsize == 0
                raw = part.reshape(-1).view(np.uint8)
                assert not raw.any(), "no other part lies here"
                raw[:] = 1
                used_bytes += raw.nbytes
    assert int(memory.sum()) == used_bytes == 2 * layout.batch_bytes
    assert layout.slot_bytes % PAGE_BYTES == 0
    assert layout.slot_bytes - layout.batch_bytes < PAGE_BYTES + 16


def packed_by_hand(levels: np.ndarray, packing: str) -> np.ndarray:
    """The packing computed from the words of its name in plain numpy."""
    kind, axes, channels = packing.split("-")
    values = levels.astype(int) - (0 if kind == "uint8" else 128)
    if channels == "rgbx":
        values = np.concatenate([values, np.zeros((*levels.shape[:3], 1), int)], axis=3)
    if axes == "chw":
        values = np.moveaxis(values, 3, 1)
    return values.astype(kind)


@given(
    packing=st.sampled_from(get_args(Packing)),
    size=st.integers(1, 33),
    images=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_levels_survive_packing_and_grey_is_level_128(
    packing: Packing, size: int, images: int, seed: int
) -> None:
    layout = pixel_layout_of(packing)
    levels = np.random.default_rng(seed).integers(0, 256, (images, size, size, 3), np.uint8)
    packed = np.full((images, *layout.image_shape(size)), 99, layout.dtype)
    for rgb, row in zip(levels, packed, strict=True):
        pack_levels(rgb, layout, row)
    assert np.array_equal(packed, packed_by_hand(levels, packing))
    assert np.array_equal(unpack_levels(packed, layout), levels)
    assert packed[0].nbytes == layout.image_bytes(size)
    packed[:] = layout.grey
    assert (unpack_levels(packed, layout) == 128).all()
