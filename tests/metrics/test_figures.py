"""Numbers as text: short, never "nan", units that fit."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.metrics import figures


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (4.21, "4.2 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200.0, "3 min 20 s"),
        (3599.6, "1 h"),
        (11_520.0, "3 h 12 min"),
        (86_400.0, "1 d"),
        (1_051_200.0, "12 d 4 h"),
    ],
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 KB"),
        (99_949, "99.9 KB"),
        (999_600, "1.0 MB"),
        (23_400_000_000, "23.4 GB"),
        (140_000_000_000, "140 GB"),
        (3.2e15, "3,200 TB"),
    ],
)
def test_a_size_has_the_unit_that_fits(size_bytes: float, text: str) -> None:
    assert figures.size(size_bytes) == text


@given(st.floats(min_value=0, max_value=1e15))
def test_rates_and_sizes_are_numbers(value: float) -> None:
    for text in (figures.rate(value), figures.count(value)):
        assert re.fullmatch(r"\d{1,3}(,\d{3})*(\.\d)?", text)
    assert re.fullmatch(r"[\d,]+(\.\d)? (bytes|[KMGT]B)", figures.size(value))


def test_nouns_have_plurals() -> None:
    assert figures.plural(1, "worker") == "1 worker"
    assert figures.plural(2, "node process") == "2 node processes"
    assert (figures.plural(1, "class"), figures.plural(3, "class")) == ("1 class", "3 classes")
    assert figures.plural(1_281_167, "image") == "1,281,167 images"
