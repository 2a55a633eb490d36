"""Runs a bench in this process and checks its rows."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main

Rows = Mapping[str, Mapping[str, Any]]


def run_bench(folder: Path, *arguments: object) -> dict[str, Any]:
    """Run a bench that passes; return its JSON."""
    out = folder / "rows.json"
    assert main([*map(str, arguments), "--json", str(out)]) == 0
    document: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return document


def check_rows(document: Mapping[str, Any], expected: Mapping[str, tuple[str, str | None]]) -> Rows:
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
