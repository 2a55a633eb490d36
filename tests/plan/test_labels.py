"""Kinds of labels: what is encoded comes back; no label looks like padding."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.labels import FLOAT_WIDTH_MAX, MULTI_WIDTH_MAX, STORED_BYTES_MAX, LabelSpec
from feeder.plan.recipe import Recipe
from feeder.wire.slot_layout import PAGE_BYTES, SlotLayout

widths = st.integers(1, 40)
specs = st.one_of(
    st.builds(LabelSpec, kind=st.sampled_from(["index", "none"])),
    st.builds(LabelSpec, kind=st.sampled_from(["multi", "float"]), width=widths),
)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def _decode(labels: LabelSpec, stored: list[bytes]) -> np.ndarray:
    rows = np.frombuffer(b"".join(stored), np.uint8).reshape(len(stored), labels.stored_bytes)
    out = np.full((len(stored), *labels.row_shape), labels.padding, labels.dtype)
    labels.decode_rows(rows, out)
    return out


@given(
    widths.flatmap(
        lambda width: st.tuples(
            st.just(width), st.lists(st.lists(st.integers(0, width - 1)), min_size=1, max_size=4)
        )
    )
)
def test_several_classes_come_back_as_zeros_and_ones(case: tuple[int, list[list[int]]]) -> None:
    width, samples = case
    labels = LabelSpec(kind="multi", width=width)
    stored = [labels.encode_multi(classes) for classes in samples]
    assert {len(each) for each in stored} == {-(-width // 8)}
    rows = _decode(labels, stored)
    assert [np.flatnonzero(row).tolist() for row in rows] == [sorted(set(c)) for c in samples]
    assert set(rows.flatten().tolist()) <= {0, 1}
    assert all(labels.find_fault(each) is None for each in stored)


def test_class_c_is_bit_c_from_the_lowest() -> None:
    labels = LabelSpec(kind="multi", width=12)
    assert labels.encode_multi([0, 9]) == b"\x01\x02"
    assert labels.encode_multi([]) == b"\0\0"


@given(
    widths.flatmap(
        lambda width: st.lists(
            st.lists(floats, min_size=width, max_size=width), min_size=1, max_size=4
        )
    )
)
def test_floats_come_back_bit_for_bit(samples: list[list[float]]) -> None:
    labels = LabelSpec(kind="float", width=len(samples[0]))
    stored = [labels.encode_floats(values) for values in samples]
    rows = _decode(labels, stored)
    assert rows.shape == (len(samples), labels.width)
    assert rows.tobytes() == np.array(samples, np.float32).tobytes()
    assert all(labels.find_fault(each) is None for each in stored)


@pytest.mark.parametrize("classes", [[3], [-1], [0, 2**70], [0, 3]])
def test_a_class_that_does_not_exist_is_refused(classes: list[int]) -> None:
    with pytest.raises(ValueError, match=r"there is no class -?\d+: classes are 0 \.\. 2"):
        LabelSpec(kind="multi", width=3).encode_multi(classes)


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0], []])
def test_another_number_of_values_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=rf"it has {len(values)} values, the dataset's samples 2"):
        LabelSpec(kind="float", width=2).encode_floats(values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39, -1e300])
def test_values_that_padding_or_float32_cannot_tell_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite numbers in the range of float32"):
        LabelSpec(kind="float", width=2).encode_floats([0.0, value])


def test_faults_of_stored_rows_are_named() -> None:
    multi, single = LabelSpec(kind="multi", width=3), LabelSpec(kind="float")
    assert multi.find_fault(b"\x07") is None
    assert multi.find_fault(b"\x08") == "its labels have a bit above the 3 classes"
    assert LabelSpec(kind="multi", width=8).find_fault(b"\xff") is None
    nan = np.array([math.nan], "<f4").tobytes()
    assert single.find_fault(nan) == "its labels are not finite numbers"
    assert LabelSpec().find_fault(b"") is None


@given(specs)
def test_no_row_of_a_sample_equals_padding(labels: LabelSpec) -> None:
    padding = np.full((1, *labels.row_shape), labels.padding, labels.dtype)
    if labels.kind == "float":
        assert np.isnan(padding).all()
    else:
        assert padding.flatten()[0] == (255 if labels.kind == "multi" else -100)
    assert labels.row_bytes == padding.nbytes
    assert len(padding.shape) == (2 if labels.kind in ("multi", "float") else 1)


def test_a_kind_is_described_with_its_size() -> None:
    multi, floats = LabelSpec(kind="multi", width=1234), LabelSpec(kind="float", width=2)
    assert LabelSpec().describe(1000) == "1,000 classes"
    assert multi.describe(1234) == "any of 1,234 classes"
    assert floats.describe(0) == "2 floats a sample"
    assert LabelSpec(kind="none").describe(0) == "no labels"


@given(specs)
def test_a_kind_survives_json_and_messagepack(labels: LabelSpec) -> None:
    assert msgspec.json.decode(msgspec.json.encode(labels), type=LabelSpec) == labels
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(labels), type=LabelSpec) == labels


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


def test_the_widest_labels_stay_within_the_formats_bound() -> None:
    widest = LabelSpec(kind="float", width=FLOAT_WIDTH_MAX)
    assert widest.stored_bytes == STORED_BYTES_MAX
    assert LabelSpec(kind="multi", width=MULTI_WIDTH_MAX).stored_bytes <= STORED_BYTES_MAX


@given(
    labels=specs,
    batch_size=st.integers(1, 9),
    image_size=st.integers(8, 12),
    packing=st.sampled_from(["int8-hwc-rgb", "uint8-chw-rgbx", "float32-hwc-rgb"]),
)
def test_slots_of_every_kind_hold_all_parts_without_overlap(
    labels: LabelSpec, batch_size: int, image_size: int, packing: str
) -> None:
    recipe = Recipe.for_split(
        "train", batch_size=batch_size, image_size=image_size, packing=packing
    )
    layout = SlotLayout.of_recipe(recipe, labels, slots=2)
    memory = np.zeros(layout.total_bytes, np.uint8)
    used_bytes = 0
    for slot in range(2):
        for first in range(batch_size):
            chunk = layout.chunk(memory, slot, first, 1)
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
