"""Counts and histograms: nothing is lost on the way to a bar, and bars lie on the axis."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.survey.axes import height_of, height_ticks
from feeder.survey.counts import EvenCounts, OctaveCounts, WholeCounts
from feeder.survey.histogram import (
    BARS_MAX,
    PIXELS,
    Histogram,
    aspect_histogram,
    bytes_unit,
    even_histogram,
    logarithmic_histogram,
    whole_histogram,
)
from feeder.survey.numbers import format_amount, format_bytes, format_compact, format_share

_SIDES = st.lists(st.integers(1, 65_535), min_size=1, max_size=60)


def _check(shown: Histogram, total: int) -> None:
    assert sum(bar.count for bar in shown.bars) == total
    assert len(shown.bars) <= BARS_MAX + 1
    assert all(0 <= bar.start < bar.end <= 1 + 1e-9 for bar in shown.bars)
    assert all(a.end <= b.start + 1e-9 for a, b in zip(shown.bars, shown.bars[1:], strict=False))
    positions = [position for position, _ in shown.ticks]
    assert positions == sorted(set(positions))
    assert all(-1e-9 <= position <= 1 + 1e-9 for position in positions)
    assert 1 <= len(positions) <= 9 or shown.is_constant


@settings(max_examples=60, deadline=None)
@given(sides=_SIDES, others=_SIDES)
def test_every_value_is_in_one_bar(sides: list[int], others: list[int]) -> None:
    whole, octaves, aspects = WholeCounts(65_536), OctaveCounts(), OctaveCounts()
    whole.add(np.array(sides, np.uint16))
    octaves.add(np.array(sides, np.float64) * others[0])
    aspects.add(np.array(sides, np.float64) / others[0])
    _check(logarithmic_histogram("Side", whole.distribution(), PIXELS), len(sides))
    unit = bytes_unit(octaves.distribution().quantile(0.5))
    _check(logarithmic_histogram("Bytes", octaves.distribution(), unit), len(sides))
    _check(aspect_histogram("Aspect", aspects.distribution()), len(sides))
    _check(whole_histogram("Labels", whole.distribution(), "labels"), len(sides))


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_every_float_is_in_one_bar(values: list[float]) -> None:
    low, high = min(values), max(values)
    counts = EvenCounts(low, high, 32)
    counts.add(np.array(values, np.float64))
    mean = sum(each / len(values) for each in values)
    shown = even_histogram("Value", low, mean, high, counts.counts)
    assert sum(bar.count for bar in shown.bars) == len(values)
    assert all(0 <= bar.start < bar.end <= 1 for bar in shown.bars)
    assert shown.is_constant == (low == high)


@given(sides=_SIDES)
def test_quantiles_are_those_of_the_values(sides: list[int]) -> None:
    whole, octaves = WholeCounts(65_536), OctaveCounts()
    whole.add(np.array(sides, np.uint16))
    octaves.add(np.array(sides, np.float64))
    for share in (0.0, 0.25, 0.5, 1.0):
        expected = np.quantile(sides, share, method="inverted_cdf")
        assert whole.distribution().quantile(share) == expected
        assert octaves.distribution().quantile(share) == pytest.approx(expected, rel=0.0014)
    found = octaves.distribution()
    assert (found.low, found.high, found.total) == (min(sides), max(sides), len(sides))


def test_square_images_have_a_bar_around_one() -> None:
    counts = OctaveCounts()
    counts.add(np.array([1.0, 1.0, 0.5, 2.0]))
    (square,) = (bar for bar in aspect_histogram("A", counts.distribution()).bars if bar.count == 2)
    assert (square.start + square.end) / 2 == pytest.approx(0.5)


def test_labels_of_bars_name_whole_pixels() -> None:
    counts = WholeCounts(65_536)
    counts.add(np.array([32, 33, 500, 4_000], np.uint16))
    labels = [bar.label for bar in logarithmic_histogram("S", counts.distribution(), PIXELS).bars]
    assert labels == ["32–38 px", "431–511 px", "3,445–4,095 px"]


@pytest.mark.parametrize("most", [1, 2, 7, 1_000, 123_456, 14_000_000])
@pytest.mark.parametrize("is_logarithmic", [False, True])
def test_heights_and_their_ticks_lie_on_the_axis(most: int, is_logarithmic: bool) -> None:
    ticks = height_ticks(most, is_logarithmic=is_logarithmic)
    assert 1 <= len(ticks) <= 6
    assert all(0 <= share <= 1 for share, _ in ticks)
    assert height_of(most, most, is_logarithmic=is_logarithmic) == 1
    assert height_of(0, most, is_logarithmic=is_logarithmic) == 0


def test_numbers_are_written_with_separators_and_few_digits() -> None:
    amounts = [format_amount(each) for each in (0, 4288, 12.34, 1.5, 0.0625, -0.75, 1e12)]
    assert amounts == ["0", "4,288", "12.3", "1.5", "0.0625", "−0.75", "1e+12"]
    assert [format_compact(each) for each in (5_000, 20_000, 1.5e6)] == ["5,000", "20k", "1.5M"]
    sizes = [format_bytes(each) for each in (674, 109_300_000, 1.29e12, 2e15)]
    assert sizes == ["674 B", "109.3 MB", "1.3 TB", "2,000 TB"]
    shares = [format_share(part, 1_000_000) for part in (0, 1, 125_000, 999_999, 1_000_000)]
    assert shares == ["0 %", "< 0.01 %", "12.5 %", "> 99.9 %", "100 %"]
