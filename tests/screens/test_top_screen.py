"""The full screen: it fills no more than its lines, and everything can be reached by scrolling."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from feeder.metrics.report import HostReport
from feeder.screens.sheet import BLOCKS, Sheet
from feeder.screens.status_screen import draw_status_frame
from feeder.screens.top_screen import draw_top, share_lines
from tests.support.host_reports import (
    REPORTS,
    compute_bound,
    many_clients,
    many_nodes,
    silent_worker,
    store_bound,
)

NOTE = Text("p pause  q quit")
SIZES = [(40, 12), (80, 24), (160, 50), (20, 5), (80, 1)]


def draw(report: HostReport, width: int, height: int, offset: int = 0) -> tuple[str, int]:
    lines, scroll_max = draw_top(report, Sheet(width, BLOCKS), height, offset, NOTE)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    return "\n".join(line.plain for line in lines), scroll_max


def text(report: HostReport, width: int, height: int, offset: int = 0) -> str:
    return draw(report, width, height, offset)[0]


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_every_report_fits_every_screen(name: str, size: tuple[int, int]) -> None:
    screen = text(REPORTS[name](), *size, offset=3)
    assert not re.search(r"\b(nan|inf|None)\b", screen)


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids=["80x24", "160x50"])
def test_the_head_has_verdict_curves_stages_and_machine(size: tuple[int, int]) -> None:
    screen = text(compute_bound(), *size)
    assert screen.splitlines()[0].endswith("p pause  q quit")
    assert screen.splitlines()[1].startswith("compute-bound: decode takes 68 %")
    for line in (r"images/s +3,000 +[▁-█]{20}", r"busy +99 % +[▁-█]+", r"wait +31 % +[▁-█]+"):
        assert re.search(line, screen)
    assert re.search(r"stages +█+▓+▒+░+", screen)
    assert "█ decode 68 %" in screen
    assert "8.0 of 8 CPUs busy" in screen


def test_the_head_has_what_comes_from_a_store() -> None:
    assert re.search(r"^store +380 MB/s  95 requests/s  5\.4 b", text(store_bound(), 80, 50), re.M)


def test_workers_have_number_core_state_and_share() -> None:
    screen = text(compute_bound(), 80, 24)
    for number in range(8):
        assert re.search(rf"\b{number} cpu {number} busy +━+ +99 %", screen)


def test_a_silent_worker_comes_first() -> None:
    screen = text(silent_worker(), 80, 24)
    assert re.search(r"^1 cpu 1 silent 6\.9 s, pid 5001", screen, re.MULTILINE)


@pytest.mark.parametrize(
    ("report", "size", "patterns"),
    [
        (many_nodes(), (160, 50), {r"(\d+/\d+) +cpu": 256, r"(rank \d) +8 ": 8, r"^ +(\d)  re": 8}),
        (many_clients(), (80, 24), {r"(pid 70\d\d) ": 64, r"(other clients)": 1, r"(\d+) cpu": 16}),
    ],
    ids=["many-nodes", "many-clients"],
)
def test_everything_can_be_reached_by_scrolling(
    report: HostReport, size: tuple[int, int], patterns: dict[str, int]
) -> None:
    _, last = draw(report, *size)
    frames = [text(report, *size, offset) for offset in range(last + 1)]
    for pattern, count in patterns.items():
        matches = [re.findall(pattern, frame, re.MULTILINE) for frame in frames]
        assert len(set().union(*matches)) == count, pattern


def test_a_list_says_how_much_of_it_is_hidden() -> None:
    assert "▼ 126 more" in text(many_nodes(), 80, 24)
    assert "▲ 5 more  ▼ 121 more" in text(many_nodes(), 80, 24, 5)


@given(room=st.integers(0, 60), needs=st.lists(st.integers(0, 80), max_size=5))
def test_lists_share_all_lines_fairly(room: int, needs: list[int]) -> None:
    rooms = share_lines(room, needs)
    assert all(0 <= got <= need for got, need in zip(rooms, needs, strict=True))
    assert sum(rooms) == min(room, sum(needs))
    short = [got for got, need in zip(rooms, needs, strict=True) if got < need]
    assert not short or max(rooms) - min(short) <= 1


@pytest.mark.parametrize("name", REPORTS)
def test_the_status_screen_scrolls_through_all_of_its_lines(name: str) -> None:
    sheet = Sheet(80, BLOCKS)
    report = REPORTS[name]()
    whole, scroll_max = draw_status_frame(report, sheet, 50, 0, NOTE)
    assert scroll_max == 0
    low = [draw_status_frame(report, sheet, 10, offset, NOTE)[0] for offset in range(50)]
    assert low[-1][-2].plain == whole[-2].plain
    assert all(len(lines) <= 10 for lines in low)
    assert {line.plain for lines in low for line in lines} == {line.plain for line in whole}
