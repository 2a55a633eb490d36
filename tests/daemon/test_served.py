"""What the daemon shows of its datasets."""

from pathlib import Path

import pytest

from feeder.daemon.served import describe_datasets
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, DatasetError
from tests.support.daemon import SAMPLES, pack_small


def test_datasets_are_described_or_refused(tmp_path: Path) -> None:
    packed = pack_small(tmp_path)
    again, small = describe_datasets({"small": packed, "again": packed})
    assert again.line.startswith(f"data again: {SAMPLES} samples, 5 shards, 3 classes, ")
    assert small.line.startswith("data small: ")
    assert small.report.name == "small"
    assert (small.report.samples, small.report.classes) == (SAMPLES, 3)
    assert small.report.folder == str(packed)
    assert small.line.endswith(small.report.fingerprint[:12])
    with pytest.raises(ConfigError, match="nothing to serve"):
        describe_datasets({})
    with pytest.raises(DatasetError):
        describe_datasets({"d": tmp_path / "missing"})


def test_each_dataset_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_small(tmp_path)
    opened: list[Path] = []
    original = Dataset.open
    monkeypatch.setattr(
        Dataset, "open", lambda path, **fields: opened.append(path) or original(path, **fields)
    )
    describe_datasets({"small": packed, "again": packed})
    assert opened == [packed, packed]
