"""Everything of a report as JSON, with the rates that the screens show."""

import json

import msgspec
import pytest

from feeder.metrics.report import HostReport
from feeder.screens.console import to_json
from tests.support.host_reports import REPORTS, many_nodes


@pytest.mark.parametrize("name", REPORTS)
def test_the_report_is_complete(name: str) -> None:
    report = REPORTS[name]()
    decoded = json.loads(to_json(report), parse_constant=pytest.fail)
    assert list(decoded) == ["verdict", "rates", "report"]
    assert msgspec.convert(decoded["report"], HostReport) == report
    assert decoded["verdict"]["text"] == report.verdict.text


def test_rates_are_those_of_the_interval() -> None:
    rates = json.loads(to_json(many_nodes()))["rates"]
    assert rates["images_a_s"] == pytest.approx(28_800)
    assert rates["wait_share"] == pytest.approx(0.008)
    assert rates["stages"]["decode"] == pytest.approx(0.68)
    assert len(rates["nodes"]) == 8
    assert len(rates["nodes"][0]["workers"]) == 32
    assert [client["nodes"] for client in rates["clients"]] == [8] * 8


def test_without_an_indent_it_is_one_line() -> None:
    assert "\n" not in to_json(many_nodes())
