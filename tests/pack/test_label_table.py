"""Every situation of label_situations, packed from every kind of source that can hold it."""

import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder
from feeder.cli.pack import format_summary
from feeder.dataset.opened import Dataset
from feeder.errors import FeederError
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import pack_dataset
from tests.pack.label_situations import SITUATIONS, WRITERS, Situation, samples
from tests.support.sources import run_inline

CASES = [
    pytest.param(situation, kind, id=f"{situation.title}-{kind}")
    for situation in SITUATIONS
    for kind in situation.kinds
]


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack in this process, into a file system that need not be durable."""
    run_inline(monkeypatch, "pack.run")
    monkeypatch.setattr("os.fsync", lambda _: None)


def _pack(situation: Situation, kind: str, folder: Path) -> tuple[str, str]:
    """Return the summary's line about labels, and all that was noted."""
    noted = io.StringIO()
    if kind == "samples":
        options: dict[str, Any] = dict(situation.options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            packed = feeder.pack_samples(
                samples(situation.raw),
                folder / "packed",
                labels=options.get("label_kind"),
                uncertain=options.get("uncertain"),
                max_bad="100%",
                jobs=1,
            )
        return f"  labels: {packed.labels_read}", " ".join(str(each.message) for each in caught)
    source = WRITERS[kind](folder / "source", situation.raw)
    label = {"label": "label"} if kind == "tfrecord" else {}
    choices = {**situation.options, **label}
    summary = pack_dataset(
        source,
        folder / "packed",
        PackOptions(max_bad="100%", reading=choices),
        ProgressLine(noted),
    )
    lines = format_summary(folder / "packed", summary)
    return next(line for line in lines if line.startswith("  labels: ")), noted.getvalue()


def _labels(dataset: Dataset) -> dict[int, Any]:
    """Return the label of each image that was packed, by its number."""
    ids = np.arange(dataset.layout.samples)
    rows = np.empty((len(ids), *dataset.labels.row_shape), dataset.labels.dtype)
    dataset.read_labels(ids, dataset.read_records(ids), rows)
    found = {}
    for number in ids.tolist():
        row = rows[number]
        name = re.search(r"(\d\d)\.jpg$", str(dataset.name_of(number)))
        assert name is not None
        multi = dataset.labels.kind == "multi"
        found[int(name[1])] = np.flatnonzero(row).tolist() if multi else row.tolist()
    return found


@pytest.mark.parametrize(("situation", "kind"), CASES)
def test_labels_are_read_as_they_are_meant(situation: Situation, kind: str, tmp_path: Path) -> None:
    if situation.error:
        with pytest.raises(FeederError) as raised:
            _pack(situation, kind, tmp_path)
        message = str(raised.value).replace(" labels=", " --label-kind ")
        message = message.replace(" uncertain=", " --uncertain ")
        assert re.search(situation.error, message), message
        assert "\n" not in message
        assert not (tmp_path / "packed" / "manifest.json").exists()
        return
    line, noted = _pack(situation, kind, tmp_path)
    assert line.startswith(f"  labels: {situation.line}")
    assert re.search(situation.warning or "^", noted)
    assert situation.warning or "warning" not in noted
    with Dataset.open(tmp_path / "packed") as dataset:
        assert dataset.classes == situation.classes
        if situation.labels is not None:
            wanted = {n: label for n, label in enumerate(situation.labels) if label is not None}
            assert _labels(dataset) == wanted


def test_the_table_has_what_the_promise_counts() -> None:
    assert len(CASES) >= 80
    assert all(situation.why for situation in SITUATIONS)
