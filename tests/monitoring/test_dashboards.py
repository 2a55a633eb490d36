"""The Grafana dashboard and the alert rules use metrics that exist.

`make test-ui` checks them with the real tools.
"""

import json
import re

from feeder.monitoring.exposition import Exposition
from tests.support.host_reports import healthy
from tests.support.sources import REPOSITORY

MONITORING = REPOSITORY / "docs" / "monitoring"
NAME = re.compile(r"\bfeeder_\w+")


def exported() -> set[str]:
    names: set[str] = set()
    exposition = Exposition()
    exposition.render(healthy())
    for family in exposition.collect():
        suffixes = {
            "counter": ("_total",),
            "histogram": ("", "_bucket", "_count", "_sum"),
        }.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
    return names


def test_every_metric_of_dashboard_and_alerts_is_exported() -> None:
    names = exported()
    assert len(names) > 60
    for file in ("feeder.json", "alerts.yml", "alerts_test.yml", "README.md"):
        used = {*NAME.findall((MONITORING / file).read_text("utf-8"))}
        assert used, file
        assert used <= names, file


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((MONITORING / "feeder.json").read_text("utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len({*cells}) == len(cells), "no panels overlap"
    assert max(x for x, _ in cells) == 23
    assert all(panel["type"] == "row" or panel["targets"] for panel in panels)


def test_every_alert_has_a_summary_and_a_command_to_run() -> None:
    text = (MONITORING / "alerts.yml").read_text("utf-8")
    alerts = text.split("- alert: ")[1:]
    assert len(alerts) >= 10
    for alert in alerts:
        assert "summary: " in alert
        runbook = alert.partition("runbook: ")[2]
        assert re.search(r"feeder status|feeder doctor|journalctl", runbook), alert
        tested = alert.partition("\n")[0]
        assert tested in (MONITORING / "alerts_test.yml").read_text("utf-8"), tested
