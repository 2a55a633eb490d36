"""``feeder-bench loss`` on a tiny source: its rows, its JSON and its table."""

import json
from pathlib import Path

import pytest

from bench.cli import main
from bench.micro import loss
from bench.micro.loss import Setting
from tests.support.sources import make_source, run_inline

_IMAGES = 11


@pytest.fixture
def rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, dict[str, float]]:
    settings = (Setting(max_side=40), Setting(quality=30, subsampling="444"), Setting(max_side=90))
    monkeypatch.setattr(loss, "SETTINGS", settings)
    run_inline(monkeypatch, "pack.run")
    source = make_source(tmp_path / "source", _IMAGES, side=40)
    out = tmp_path / "loss.json"
    assert main(["loss", str(source), "--rounds", "2", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["bench"] == "loss"
    lines = capsys.readouterr().out.splitlines()
    for setting in settings:
        assert any(line.startswith(setting.name) for line in lines)
    return {row["name"]: row for row in report["results"]}


def test_sizes_rates_and_psnr_of_each_setting(rows: dict[str, dict[str, float]]) -> None:
    resized, poor, same = "max-side 40", "quality 30 subsampling 444", "max-side 90"
    for name in (resized, poor, same):
        for what in ("size", "train"):
            assert rows[f"{name}/{what}"]["baseline"] == f"lossless/{what}"
            assert rows[f"{name}/{what}"]["ratio"] > 0
    assert rows[f"{same}/size"]["ratio"] == 1
    assert rows["lossless/changed"]["value"] == rows[f"{same}/changed"]["value"] == 0
    assert f"{same}/stored" not in rows
    assert f"{same}/crop" not in rows
    larger = sum(40 + number % 7 > 40 for number in range(_IMAGES))
    assert rows[f"{resized}/changed"]["value"] == pytest.approx(100 * larger / _IMAGES)
    assert rows[f"{poor}/changed"]["value"] == 100
    for what in ("stored", "crop"):
        assert 10 < rows[f"{poor}/{what}"]["min"] <= rows[f"{poor}/{what}"]["value"] < 40
    assert rows[f"{poor}/stored"]["value"] < rows[f"{resized}/stored"]["value"]
