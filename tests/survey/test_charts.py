"""Charts: nothing is lost on the way to a bar, and bars lie on the axis."""

import re
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
    draw_chart,
    make_histogram,
)
from feeder.survey.numbers import format_amount, format_bytes, format_compact, format_share, plural

_SIDES = st.lists(st.integers(1, 65_535), min_size=1, max_size=60)
_FLOATS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1)


def _check(values: Sequence[float], unit: Unit) -> None:
    chart = make_histogram("Any", np.array(values), unit)
    assert (chart.bars == ()) == (min(values) == max(values))
    assert sum(height for _, height in chart.bars) == (len(values) if chart.bars else 0)
    assert len(chart.bars) <= BARS_MAX + 1
    places = [place for place, _ in chart.ticks]
    assert places == sorted(set(places))
    assert len(places) <= 9
    assert all(0 <= place <= 1 for place in places)


@settings(max_examples=60)
@given(sides=_SIDES, others=_SIDES)
def test_every_number_is_in_one_bar(sides: list[int], others: list[int]) -> None:
    _check(sides, PIXELS)
    _check(sides, CLASSES)
    sizes = [side * others[0] for side in sides]
    _check(sizes, bytes_unit(sizes[0]))
    _check([side / others[0] for side in sides], ASPECT)


@settings(max_examples=60)
@given(values=_FLOATS)
@example(values=[0.1, 0.3, 0.7])
def test_every_float_is_in_one_bar(values: list[float]) -> None:
    _check(values, VALUE)


@given(sides=_SIDES)
def test_each_bar_holds_the_values_of_its_label(sides: list[int]) -> None:
    for label, height in make_histogram("S", np.array(sides), PIXELS).bars:
        first, last = (re.findall(r"[\d,]+", label) * 2)[:2]
        within = range(int(first.replace(",", "")), int(last.replace(",", "")) + 1)
        assert height == sum(side in within for side in sides)


def test_bars_say_what_they_count_and_where_they_are() -> None:
    chart = make_histogram("S", np.array([32, 33, 500, 4_000]), PIXELS)
    bars = [label for label, height in chart.bars if height]
    assert bars == ["30–34 px", "470–558 px", "3,757–4,466 px"]
    assert chart.summary == "32 px · median 33 px · 4,000 px"
    aspects = make_histogram("A", np.array([1.0, 1.0, 0.5, 1.2]), ASPECT)
    assert [height for _, height in aspects.bars].index(2) == len(aspects.bars) // 2
    assert (0.5, "1:1") in aspects.ticks
    classes = make_histogram("C", np.array([0, 2, 2, 3]), CLASSES)
    for place, text in classes.ticks:  # a bar of one number is around its tick
        assert classes.bars[int(place * len(classes.bars))][0] == f"{text} classes"
    assert make_histogram("C", np.array([4, 4]), CLASSES).summary == "all 4"
    values = make_histogram("V", np.array([-1, 1.5, 3], np.float32), VALUE)
    assert values.summary == "−1 · mean 1.17 · 3"
    assert values.bars[0] == ("−1 to −0.875", 1)


def test_bars_are_drawn_where_they_count_and_as_high() -> None:
    chart = make_histogram("C", np.array([0] * 8 + [1] * 4 + [12]), CLASSES)
    drawn = re.findall(
        r'<rect x="([\d.]+)%" y="([\d.]+)" width="([\d.]+)%" height="([\d.]+)"',
        draw_chart(chart, "c"),
    )
    boxes = np.array(drawn, np.float64)
    middles = (boxes[:, 0] + boxes[:, 2] / 2) / 100
    places = [place for place, text in chart.ticks if text in ("0",)]
    assert middles == pytest.approx([0.5 / 13, 1.5 / 13, 12.5 / 13], abs=1e-4)
    assert places == pytest.approx(middles[:1], abs=1e-4)
    assert boxes[:, 3] == pytest.approx(boxes[0, 3] * np.array([1, 0.5, 0.125]), abs=0.1)
    assert boxes[:, 1] + boxes[:, 3] == pytest.approx(boxes[0, 1] + boxes[0, 3])


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
