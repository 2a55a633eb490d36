"""Bars and curves have the width that was asked for, and can be read without colours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.screens.glyphs import ASCII, BLOCKS, Glyphs, glyphs_for

BOTH = pytest.mark.parametrize("glyphs", [BLOCKS, ASCII], ids=["blocks", "ascii"])
STYLES = ("red", "green")


@BOTH
@given(share=st.floats(min_value=0, max_value=2), width=st.integers(1, 60))
def test_a_bar_has_its_width_and_its_share(glyphs: Glyphs, share: float, width: int) -> None:
    text = glyphs.bar(share, width).plain
    assert len(text) == width
    filled = text.count(glyphs.full) + 0.5 * (text.count(glyphs.half) if glyphs.half else 0)
    if share > 0:
        assert filled > 0
    assert abs(filled - min(1.0, share) * width) <= 1


@BOTH
@given(shares=st.lists(st.floats(min_value=0, max_value=1), max_size=9), width=st.integers(1, 200))
def test_a_stacked_bar_has_its_width(glyphs: Glyphs, shares: list[float], width: int) -> None:
    total = max(1.0, sum(shares))
    text = glyphs.stack([share / total for share in shares], width, STYLES)
    assert text.cell_len == width


def test_a_stacked_bar_shows_parts_in_proportion() -> None:
    assert ASCII.stack([0.5, 0.3], 10, STYLES).plain == "#####===--"


@BOTH
@given(
    values=st.lists(st.floats(min_value=0, max_value=1e9), max_size=300), width=st.integers(1, 99)
)
def test_a_curve_has_its_width(glyphs: Glyphs, values: list[float], width: int) -> None:
    text = glyphs.curve(values, width, max(values, default=0.0))
    assert text.cell_len == width


def test_a_curve_ends_with_the_latest_value() -> None:
    assert BLOCKS.curve([0.0, 0.5, 1.0], 5, 1.0).plain == "  ▁▅█"


def test_a_curve_of_many_values_shows_their_means() -> None:
    assert BLOCKS.curve([0.0, 0.0, 1.0, 1.0], 2, 1.0).plain == "▁█"


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [("utf-8", BLOCKS), ("ascii", ASCII), ("iso-8859-1", ASCII), ("cp437", ASCII), ("x", ASCII)],
)
def test_an_encoding_without_blocks_gets_ascii(encoding: str, glyphs: Glyphs) -> None:
    assert glyphs_for(encoding) is glyphs
