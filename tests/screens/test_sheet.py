"""Lines are never wider than the sheet, and what must not be cut is not; bars have their width."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from feeder.screens.sheet import (
    ASCII,
    BLOCKS,
    Column,
    Glyphs,
    Sheet,
    glyphs_for,
    percent,
    printable,
)

WIDTHS = st.integers(1, 200)
TEXTS = st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=60)


def plain(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


@given(width=WIDTHS, pieces=st.lists(TEXTS, max_size=8), label=st.sampled_from(["", "Workers"]))
def test_flowing_pieces_fit(width: int, pieces: list[str], label: str) -> None:
    assert all(line.cell_len <= width for line in Sheet(width, BLOCKS).flow(label, pieces))


@given(width=st.integers(4, 200), text=TEXTS, indent=st.integers(0, 1))
def test_wrapped_words_fit_and_are_all_there(width: int, text: str, indent: int) -> None:
    lines = Sheet(width, BLOCKS).words(text, "", indent=indent)
    assert all(line.cell_len <= width for line in lines)
    assert "".join("".join(plain(lines)).split()) == "".join(text.split())


@given(width=st.integers(20, 200), names=st.lists(TEXTS, min_size=1, max_size=5))
def test_numbers_of_a_table_are_whole(width: int, names: list[str]) -> None:
    columns = Column("client", names, is_flexible=True), Column("images/s", ["12,345"] * len(names))
    _, *lines = Sheet(width, BLOCKS).table(*columns)
    assert all(line.plain.endswith("12,345") and line.cell_len <= width for line in lines)


def test_a_line_that_is_too_long_shows_that_it_was_cut() -> None:
    """Else 10,000 would become 10,00 on a narrow terminal."""
    columns = (
        Column("node", ["0"]),
        Column("state", ["ready"], is_left=True),
        Column("images/s", ["10,000"]),
    )
    for glyphs, expected in ((BLOCKS, "0  ready    10,0…"), (ASCII, "0  ready    10,0~")):
        _, row = Sheet(20, glyphs).table(*columns)
        assert row.plain.strip() == expected
    assert Sheet(3, BLOCKS).fit(Text("abc")).plain == "abc"
    assert Sheet(1, BLOCKS).fit(Text("abc")).plain == "…"


def test_a_number_stays_with_its_unit() -> None:
    lines = Sheet(12, BLOCKS).words("it waits 31 % of 12 s", "")
    assert plain(lines) == ["it waits", "31 % of 12 s"]
    assert plain(Sheet(4, BLOCKS).words("abcdefgh ij", "")) == ["abcd", "efgh", "ij"]


def test_labels_stand_above_on_a_narrow_sheet() -> None:
    assert plain(Sheet(40, BLOCKS).flow("Host", ["a", "b"])) == ["Host", "  a  b"]
    assert plain(Sheet(44, BLOCKS).flow("Host", ["a", "b"])) == ["Host       a  b"]


def test_names_lose_their_middle() -> None:
    assert Sheet(80, ASCII).cut("gpu-0 pid 90000 rank 3", 13) == "gpu-0 ~rank 3"
    assert Sheet(80, BLOCKS).cut("short", 5) == "short"
    assert Sheet(80, BLOCKS).cut("x", 0) in ("", "…")


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (60, ["client", "images/s", "bar", "CPUs"]),
        (40, ["client", "images/s", "CPUs"]),
        (22, ["client", "images/s"]),
    ],
)
def test_bars_go_before_names_are_cut_and_extra_numbers_after(
    width: int, titles: list[str]
) -> None:
    columns = [
        Column("client", ["gpu-0 pid 90000 rank 3"], is_flexible=True),
        Column("images/s", ["1,234"]),
        Column("bar", ["#" * 10], is_extra=True, rank=2),
        Column("CPUs", ["0.4"], rank=1),
    ]
    head, row = Sheet(width, BLOCKS).table(*columns)
    assert head.plain.split() == titles
    assert ("…" in row.plain) == (width == 22)


def test_the_style_of_a_piece_ends_with_it() -> None:
    (line,) = Sheet(80, BLOCKS).flow("Delivers", [Text("1 image/s", "bold"), "plain"])
    bold = [line.plain[span.start : span.end] for span in line.spans if span.style == "bold"]
    assert (str(line.style), bold) == ("", ["Delivers   ", "1 image/s"])


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII], ids=["blocks", "ascii"])
@given(values=st.lists(st.floats(min_value=0, max_value=1e9), max_size=300), width=WIDTHS)
def test_bars_and_curves_have_their_width(glyphs: Glyphs, values: list[float], width: int) -> None:
    top = max(values, default=0.0)
    assert glyphs.curve(values, width, top).cell_len == width
    total = max(1.0, sum(values))
    shares = [value / total for value in values]
    assert glyphs.stack(shares, width, ("red", "green")).cell_len == width
    for share in (*shares[:9], top):
        bar = glyphs.bar(share, width).plain
        filled = bar.count(glyphs.full) + (0.5 * bar.count(glyphs.half) if glyphs.half else 0)
        assert len(bar) == width
        assert filled > 0 or not share
        assert abs(filled - min(1.0, share) * width) <= 1


def test_bars_and_curves_show_proportions() -> None:
    assert ASCII.stack([0.5, 0.3], 10, ("red", "green")).plain == "#####===--"
    assert BLOCKS.curve([0.0, 0.5, 1.0], 5, 1.0).plain == "  ▁▅█", "the latest value last"
    assert BLOCKS.curve([0.0, 0.0, 1.0, 1.0], 2, 1.0).plain == "▁█", "means of several"


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [("utf-8", BLOCKS), ("ascii", ASCII), ("iso-8859-1", ASCII), ("cp437", ASCII), ("x", ASCII)],
)
def test_an_encoding_without_blocks_gets_ascii(encoding: str, glyphs: Glyphs) -> None:
    assert glyphs_for(encoding) is glyphs


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (0.0001, "<0.1 %"),
        (0.004, "0.4 %"),
        (0.0094, "0.9 %"),
        (0.0096, "1 %"),
        (0.314, "31 %"),
        (1.0, "100 %"),
    ],
)
def test_a_small_share_is_not_zero(share: float, text: str) -> None:
    assert percent(share) == text


@given(st.text())
def test_printable_text_moves_no_cursor(text: str) -> None:
    clean = printable(text)
    assert len(clean) == len(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", clean)
    assert printable(clean) == clean


def test_printable_keeps_names_of_all_scripts() -> None:
    assert printable("données 画像 бета-2") == "données 画像 бета-2"
