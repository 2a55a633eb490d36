"""``feeder-bench resume`` on a small dataset: its rows."""

import json
from pathlib import Path

import pytest

from bench.cli import main
from tests.support.daemon import pack_small


def test_names_and_baselines_of_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "resume.json"
    dataset = pack_small(tmp_path)
    assert main(["resume", str(dataset), "--rounds", "2", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["bench"] == "resume"
    rows = {row["name"]: row for row in report["results"]}
    fresh = rows.pop("resume/first-batch-fresh")
    assert (fresh["unit"], fresh["baseline"]) == ("s", None)
    assert 0 < fresh["min"] <= fresh["value"]
    for name in ("resume/first-batch", "resume/first-batch-other-ranks"):
        row = rows.pop(name)
        assert (row["unit"], row["baseline"]) == ("s", "resume/first-batch-fresh")
        assert row["ratio"] > 0
    assert rows.pop("resume/state-us")["min"] < 100, "the state must stay small"
    assert rows.pop("resume/state-bytes")["value"] < 1000
    assert rows == {}
    assert "resume/state-us" in capsys.readouterr().out
