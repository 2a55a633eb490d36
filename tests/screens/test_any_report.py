"""Whatever numbers and texts a report has, both screens and the JSON can show it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text

from feeder.metrics.report import HostReport
from feeder.screens.console import report_fields, to_json
from feeder.screens.sheet import BLOCKS, Sheet
from feeder.screens.status_screen import draw_status
from feeder.screens.top_screen import draw_top
from tests.support.host_reports import REPORTS, many_nodes

FLOATS = (0.0, 5e-324, 1e-9, 0.5, 1e18)
INTEGERS = (0, 1, 2**63)
BASES = ("compute_bound", "store_bound", "silent_worker", "restarting_node", "just_started")


def shaken(value: Any, draw: st.DataObject, path: tuple[str, ...] = ()) -> Any:
    """A value with some of its numbers replaced by extremes, its lists by shorter ones."""
    if isinstance(value, dict):
        return {name: shaken(item, draw, (*path, name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = value[: draw.draw(st.sampled_from((0, 1, 99)))] if path != () else value
        return [shaken(item, draw, path) for item in items]
    if isinstance(value, float) and draw.draw(st.integers(0, 3)) == 0:
        return draw.draw(st.sampled_from(FLOATS))
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if is_number and path[-1] != "cpu" and draw.draw(st.integers(0, 3)) == 0:
        return draw.draw(st.sampled_from(INTEGERS[1:] if path[-1] == "clients" else INTEGERS))
    if value == "feed-03":
        return draw.draw(st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=99))
    return value


@pytest.mark.parametrize("base", BASES)
@settings(max_examples=25)
@given(draw=st.data())
def test_any_report_can_be_shown(base: str, draw: st.DataObject) -> None:
    fields = shaken(msgspec.to_builtins(REPORTS[base]()), draw)
    fields["history"] = fields["history"][:5]
    report = msgspec.convert(fields, HostReport)
    for width in (40, 80):
        sheet = Sheet(width, BLOCKS)
        lines, _ = draw_top(report, sheet, 24, 0, Text("q quit"))
        for line in (*draw_status(report, sheet), *lines):
            assert line.cell_len <= width
            assert "nan" not in line.plain
    json.loads(to_json(report_fields(report)), parse_constant=pytest.fail)


@pytest.mark.parametrize("name", REPORTS)
def test_the_report_is_complete(name: str) -> None:
    report = REPORTS[name]()
    decoded = json.loads(to_json(report_fields(report)), parse_constant=pytest.fail)
    assert list(decoded) == ["verdict", "rates", "report"]
    assert msgspec.convert(decoded["report"], HostReport) == report
    assert decoded["verdict"]["text"] == report.verdict.text


def test_rates_are_those_of_the_interval() -> None:
    rates = json.loads(to_json(report_fields(many_nodes())))["rates"]
    assert rates["images_a_s"] == pytest.approx(28_800)
    assert rates["wait_share"] == pytest.approx(0.008)
    assert rates["stages"]["decode"] == pytest.approx(0.68)
    assert len(rates["nodes"]) == 8
    assert len(rates["nodes"][0]["workers"]) == 32
    assert [client["nodes"] for client in rates["clients"]] == [8] * 8
