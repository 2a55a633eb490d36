"""Lines are never wider than the sheet, and what must not be cut is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from feeder.screens.glyphs import ASCII, BLOCKS
from feeder.screens.sheet import Column, Sheet

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
    columns = [Column("client", is_flexible=True, is_left=True), Column("images/s")]
    rows = [[name, "12,345"] for name in names]
    _, *lines = Sheet(width, BLOCKS).table(columns, rows)
    assert all(line.plain.endswith("12,345") and line.cell_len <= width for line in lines)


def test_a_line_that_is_too_long_shows_that_it_was_cut() -> None:
    """Else 10,000 would become 10,00 on a narrow terminal."""
    columns = [Column("node"), Column("state", is_left=True), Column("images/s")]
    for glyphs, shown in ((BLOCKS, "0  ready    10,0…"), (ASCII, "0  ready    10,0~")):
        _, row = Sheet(20, glyphs).table(columns, [["0", "ready", "10,000"]])
        assert row.plain.strip() == shown
    assert Sheet(3, BLOCKS).fit(Text("abc")).plain == "abc"
    assert Sheet(1, BLOCKS).fit(Text("abc")).plain == "…"


def test_a_number_stays_with_its_unit() -> None:
    lines = Sheet(12, BLOCKS).words("it waits 31 % of 12 s", "")
    assert plain(lines) == ["it waits", "31 % of 12 s"]


def test_a_word_that_is_too_long_is_broken() -> None:
    assert plain(Sheet(4, BLOCKS).words("abcdefgh ij", "")) == ["abcd", "efgh", "ij"]


def test_labels_stand_above_on_a_narrow_sheet() -> None:
    assert plain(Sheet(40, BLOCKS).flow("Host", ["a", "b"])) == ["Host", "  a  b"]
    assert plain(Sheet(44, BLOCKS).flow("Host", ["a", "b"])) == ["Host       a  b"]


def test_no_pieces_are_no_line() -> None:
    assert Sheet(80, BLOCKS).flow("Slots", []) == []


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
        Column("client", is_flexible=True, is_left=True),
        Column("images/s"),
        Column("bar", is_extra=True, rank=2),
        Column("CPUs", rank=1),
    ]
    rows = [["gpu-0 pid 90000 rank 3", "1,234", "#" * 10, "0.4"]]
    head, row = Sheet(width, BLOCKS).table(columns, rows)
    assert head.plain.split() == titles
    assert ("…" in row.plain) == (width == 22)


def test_columns_without_contents_are_left_out() -> None:
    columns = [Column("node"), Column("restarts")]
    head, *_ = Sheet(80, BLOCKS).table(columns, [["0", ""], ["1", ""]])
    assert head.plain == "node"


def test_the_style_of_a_piece_ends_with_it() -> None:
    (line,) = Sheet(80, BLOCKS).flow("Delivers", [Text("1 image/s", "bold"), "plain"])
    bold = [line.plain[span.start : span.end] for span in line.spans if span.style == "bold"]
    assert (str(line.style), bold) == ("", ["Delivers   ", "1 image/s"])
