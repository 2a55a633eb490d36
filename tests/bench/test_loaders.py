"""``feeder-bench loaders`` on a small dataset: its rows."""

import json
from pathlib import Path

import pytest
import torch

from bench.cli import main
from bench.stream import loaders
from tests.support.daemon import pack_small


def test_names_and_baselines_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "STEP_SIDE_PX", 32)
    out = tmp_path / "loaders.json"
    dataset = pack_small(tmp_path)
    threads = torch.get_num_threads()
    try:
        options = ["--rounds", "1", "--steps", "1", "--json", str(out)]
        assert main(["loaders", str(dataset), *options]) == 0
    finally:
        torch.set_num_threads(threads)
    report = json.loads(out.read_text())
    assert report["bench"] == "loaders"
    rows = {row["name"]: row for row in report["results"]}
    memory = rows.pop("training/in-memory")
    assert (memory["unit"], memory["baseline"]) == ("ms", None)
    for name in ("training/loader", "training/take"):
        row = rows.pop(name)
        assert (row["unit"], row["baseline"]) == ("ms", "training/in-memory")
        assert row["ratio"] > 0
    assert 0 <= rows.pop("training/wait")["value"] <= 100
    assert rows.pop("loaders/torch")["unit"] == "images/s"
    for name in ("loaders/numpy", "loaders/numpy-int8"):
        row = rows.pop(name)
        assert (row["unit"], row["baseline"]) == ("images/s", "loaders/torch")
        assert row["value"] > 0
    assert rows == {}
