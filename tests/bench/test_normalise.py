"""The bench of normalising: its rows, and that they need no torch."""

import json
from pathlib import Path

import pytest

from bench.cli import main
from bench.micro import normalise
from trainer_client._host_normalise import VERSIONS


@pytest.mark.parametrize("has_torch", [True, False])
def test_every_way_of_every_type_is_compared_with_the_copy(
    has_torch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_torch:
        monkeypatch.setattr(normalise, "find_spec", lambda name: None)
    out = tmp_path / "normalise.json"
    assert main(["normalise", "--images", "2", "--rounds", "1", "--json", str(out)]) == 0
    report = json.loads(out.read_text("utf-8"))
    assert report["bench"] == "normalise"
    rows = {row["name"]: row for row in report["results"]}
    expected = set()
    for value_type in ("float32", "float16", "bfloat16"):
        for channels in (3, 4):
            ways = ["copy", *VERSIONS]
            if has_torch:
                ways.append("tensor")
            expected |= {f"normalise/{way}-{value_type}-{channels}" for way in ways}
    assert {*rows} == expected
    for name, row in rows.items():
        copy = f"normalise/copy-{name.partition('-')[2]}"
        assert row["unit"] == "ms"
        assert row["value"] > 0
        assert row["baseline"] == (None if name == copy else copy)
