"""Counts and charts: nothing is lost on the way to a bar, and bars lie on the axis."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feeder.survey.charts import (
    ASPECT,
    BARS_MAX,
    CLASSES,
    PIXELS,
    VALUE,
    Unit,
    bytes_unit,
    make_histogram,
)
from feeder.survey.counts import Counts, even_counts, octave_counts
from feeder.survey.numbers import (
    format_amount,
    format_bytes,
    format_compact,
    format_share,
    plural,
)

_SIDES = st.lists(st.integers(1, 65_535), min_size=1, max_size=60)
_FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1)


def _count(counts: Counts, values: Sequence[float]) -> Counts:
    counts.add(np.array(values))
    return counts


def _check(found: Counts, unit: Unit) -> None:
    shown = make_histogram("Any", found, unit)
    assert (shown.bars == ()) == (found.low == found.high)
    assert sum(bar.height for bar in shown.bars) == (found.total if shown.bars else 0)
    assert len(shown.bars) <= BARS_MAX + 1
    assert all(0 <= bar.start < bar.end <= 1 + 1e-9 for bar in shown.bars)
    assert all(a.end <= b.start + 1e-9 for a, b in zip(shown.bars, shown.bars[1:], strict=False))
    positions = [position for position, _ in shown.ticks]
    assert positions == sorted(set(positions))
    assert len(positions) <= 9


def test_a_bin_holds_the_values_from_its_start_up_to_the_next_one() -> None:
    counts = _count(even_counts(-4.0, 4.0, 8), [-4.0, -3.01, -3.0, 0.0, 3.99, 4.0])
    assert counts.values.tolist() == [-3.5, -2.5, 0.5, 3.5]
    assert counts.counts.tolist() == [2, 1, 1, 2], "the last one holds its end, too"


@settings(max_examples=60)
@given(sides=_SIDES, others=_SIDES)
def test_every_number_is_in_one_bar(sides: list[int], others: list[int]) -> None:
    whole = _count(Counts(65_536), sides)
    blob_bytes = _count(octave_counts(), [side * others[0] for side in sides])
    _check(whole, PIXELS)
    _check(whole, CLASSES)
    _check(blob_bytes, bytes_unit(blob_bytes.quantile(0.5)))
    _check(_count(octave_counts(), [side / others[0] for side in sides]), ASPECT)


@settings(max_examples=60)
@given(values=_FLOATS)
@example(values=[0.1, 0.3, 0.7])
def test_every_float_is_in_one_bar(values: list[float]) -> None:
    _check(_count(even_counts(min(values), max(values), BARS_MAX), values), VALUE)


@given(sides=_SIDES)
def test_quantiles_are_those_of_the_values(sides: list[int]) -> None:
    whole, octaves = _count(Counts(65_536), sides), _count(octave_counts(), sides)
    for share in (0.0, 0.25, 0.5, 1.0):
        expected = np.quantile(sides, share, method="inverted_cdf")
        assert whole.quantile(share) == expected
        assert octaves.quantile(share) == pytest.approx(expected, rel=0.0014)
    assert (octaves.low, octaves.high, octaves.total) == (min(sides), max(sides), len(sides))
    assert whole.mean == pytest.approx(np.mean(sides))
    assert whole.count_below(300) == sum(side < 300 for side in sides)


def test_bars_say_what_they_count_and_where_they_are() -> None:
    sides = _count(Counts(65_536), [32, 33, 500, 4_000])
    shown = make_histogram("S", sides, PIXELS)
    assert [bar.label for bar in shown.bars] == ["32–38 px", "431–511 px", "3,445–4,095 px"]
    assert shown.summary == "32 px · median 33 px · 4,000 px"
    aspects = make_histogram("A", _count(octave_counts(), [1.0, 1.0, 0.5, 1.2]), ASPECT)
    (square,) = (bar for bar in aspects.bars if bar.height == 2)
    assert (square.start + square.end) / 2 == pytest.approx(0.5)
    assert (0.5, "1:1") in aspects.ticks
    classes = make_histogram("C", _count(Counts(9), [0, 2, 2, 3]), CLASSES)
    for place, text in classes.ticks:  # a bar of one number is around its tick
        bars = [bar for bar in classes.bars if bar.label == f"{text} classes"]
        assert all(place == pytest.approx((bar.start + bar.end) / 2) for bar in bars)
    assert make_histogram("C", _count(Counts(9), [4, 4]), CLASSES).summary == "all 4"
    values = make_histogram("V", _count(even_counts(-1, 3, BARS_MAX), [-1, 1.5, 3]), VALUE)
    assert values.summary == "−1 · mean 1.17 · 3"
    assert values.bars[0].label == "−1 to −0.875"


def test_numbers_are_written_with_separators_and_few_digits() -> None:
    amounts = [format_amount(each) for each in (0, 4288, 12.34, 1.5, 0.0625, -0.75, 1e12)]
    assert amounts == ["0", "4,288", "12.3", "1.5", "0.0625", "−0.75", "1e+12"]
    assert [format_compact(each) for each in (5_000, 20_000, 1.5e6)] == ["5,000", "20k", "1.5M"]
    sizes = [format_bytes(each) for each in (674, 109_300_000, 1.29e12, 2e15)]
    assert sizes == ["674 B", "109.3 MB", "1.3 TB", "2,000 TB"]
    shares = [format_share(part, 1_000_000) for part in (0, 1, 125_000, 999_999, 1_000_000)]
    assert shares == ["0 %", "< 0.01 %", "12.5 %", "> 99.9 %", "100 %"]
    plurals = [plural(count, "class", "classes") for count in (0, 1, 1_000)]
    assert plurals == ["0 classes", "1 class", "1,000 classes"]
