"""Runs a bench in this process and checks its rows; draws a report."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from bench.report import Report

Rows = Mapping[str, Mapping[str, Any]]
Expected = dict[str, tuple[str, str | None]]
"""Unit and baseline of each row."""

RATE = "images/s"
SAMPLES = 41  # of the fixture ``dataset``


def group(unit: str, *names: str) -> Expected:
    """Return rows of which the first is the baseline of the others."""
    return {name: (unit, None if name == names[0] else names[0]) for name in names}


def alone(**units: str) -> Expected:
    """Return rows without a baseline, by name with `__` for a slash."""
    return {name.replace("__", "/").replace("_", "-"): (unit, None) for name, unit in units.items()}


def run_bench(folder: Path, *arguments: object) -> dict[str, Any]:
    """Run a bench that passes; return its JSON."""
    out = folder / "rows.json"
    assert main([*map(str, arguments), "--json", str(out)]) == 0
    document: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return document


def check_rows(document: Mapping[str, Any], expected: Expected) -> Rows:
    """Check units and baselines by row, and the ratios of a single round; return the rows."""
    rows = {row["name"]: row for row in document["results"]}
    assert {name: (row["unit"], row["baseline"]) for name, row in rows.items()} == expected
    for name, row in rows.items():
        assert row["min"] <= row["value"] <= row["max"], name
        assert (row["ratio"] is None) == (row["baseline"] is None), name
    check_ratios(rows)
    return rows


def check_ratios(rows: Rows) -> None:
    """Check that each ratio is the row's value over its baseline's, as it is after one round."""
    for name, row in rows.items():
        baseline = rows.get(row["baseline"])
        if baseline is not None and row["min"] == row["max"]:
            assert row["ratio"] == pytest.approx(row["value"] / baseline["value"]), name


def draw(report: Report, folder: Path) -> str:
    """Draw a report; return the text in its picture, which begins with its conclusion."""
    pytest.importorskip("vl_convert", reason="the extra `plots` is not installed")
    from bench.plots.draw import write_plot

    path = folder / "picture.svg"
    write_plot(report, path)
    text = html.unescape(path.read_text("utf-8"))
    assert text.startswith("<svg")
    title = f"Title text '{report.conclude()[0]}'"
    assert title in text.replace("\\n", " ")
    return text
