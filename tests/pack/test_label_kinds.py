"""Labels of each kind, from a source to its dataset, through balancing of parts with bad images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeder.dataset.opened import Dataset
from feeder.pack.verify import Verification
from feeder.plan.labels import LabelKind, LabelSpec
from tests.support.sources import encoded, image, pack, run_inline, silent

_IMAGES = 30


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run", "pack.verify")


def _write(folder: Path, labels: list[Any]) -> Path:
    """Write images with labels.jsonl; seven of them in the middle are broken."""
    folder.mkdir()
    lines = []
    for number, label in enumerate(labels):
        data = encoded(image(40, 30, seed=number)) if not 10 <= number < 17 else b"broken"
        (folder / f"{number:02d}.jpg").write_bytes(data)
        row = {"file_name": f"{number:02d}.jpg"}
        lines.append(json.dumps(row if label is None else {**row, "label": label}))
    (folder / "labels.jsonl").write_text("\n".join(lines))
    return folder


def _labels(dataset: Dataset) -> dict[str, list[Any]]:
    ids = np.arange(dataset.layout.samples)
    spec = dataset.labels
    rows = np.empty((len(ids), *spec.row_shape), spec.dtype)
    dataset.read_labels(ids, dataset.read_records(ids), rows)
    return {str(dataset.name_of(number)): rows[number].tolist() for number in ids.tolist()}


@pytest.mark.parametrize(
    ("labels", "kind", "spec", "classes", "expected"),
    [
        (["b", "a", "c"], None, LabelSpec(), ("a", "b", "c"), [1, 0, 2]),
        ([2, 0], None, LabelSpec(), ("0", "1", "2"), [2, 0]),
        (
            [["b", "a"], [], ["c"]],
            None,
            LabelSpec(kind="multi", width=3),
            ("a", "b", "c"),
            [[1, 1, 0], [0, 0, 0], [0, 0, 1]],
        ),
        (
            [[9], [0, 3]],
            None,
            LabelSpec(kind="multi", width=10),
            tuple("0123456789"),
            [[0] * 9 + [1], [1, 0, 0, 1, 0, 0, 0, 0, 0, 0]],
        ),
        ([0.5, -2.0], None, LabelSpec(kind="float", width=1), (), [[0.5], [-2.0]]),
        ([[1, 2], [3, 4]], "float", LabelSpec(kind="float", width=2), (), [[1.0, 2.0], [3.0, 4.0]]),
        ([None, None], "none", LabelSpec(kind="none"), (), [-1, -1]),
    ],
    ids=["texts", "numbers", "several-texts", "several-numbers", "float", "floats", "none"],
)
def test_labels_of_each_kind_reach_the_dataset(
    tmp_path: Path,
    labels: list[Any],
    kind: LabelKind | None,
    spec: LabelSpec,
    classes: tuple[str, ...],
    expected: list[Any],
) -> None:
    count = len(labels)
    source = _write(tmp_path / "source", [labels[n % count] for n in range(_IMAGES)])
    if kind == "none":
        (source / "labels.jsonl").unlink()
    pack(source, tmp_path / "packed", shards=4, reading={"label_kind": kind})
    good = [n for n in range(_IMAGES) if not 10 <= n < 17]
    with Dataset.open(tmp_path / "packed") as dataset:
        assert (dataset.labels, dataset.classes) == (spec, classes)
        assert _labels(dataset) == {f"{n:02d}.jpg": expected[n % count] for n in good}
    verification = Verification.open(tmp_path / "packed", jobs=1, progress=silent())
    assert list(verification.problems()) == []
