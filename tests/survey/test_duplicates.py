"""Duplicates: found over all shards by the checksums of sources, conflicting labels first."""

import json
from pathlib import Path
from typing import Any

import pytest

from feeder.dataset.opened import Dataset
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.survey.duplicates import (
    DUPLICATES_NAME,
    Duplicates,
    find_duplicates,
    write_duplicates,
)
from tests.support.synthetic_sets import Sample, write_set

_CLASSES = ("cat", "dog", "owl")


def _find(folder: Path, samples: list[Sample], labels: LabelSpec = INDEX_LABELS) -> Duplicates:
    classes = _CLASSES if labels.kind in ("index", "multi") else ()
    manifest = write_set(folder, samples, labels=labels, classes=classes, shards=3)
    with Dataset(folder, manifest, open_shards=2) as dataset:
        return find_duplicates(dataset)


def _mixed() -> list[Sample]:
    """Sources: 7 three times in one class, 5 twice in two classes, 9 once, 0 (unknown) twice."""
    sources = (9, 7, 0, 5, 7, 2**64 - 1, 0, 7, 5, 2**64 - 1, 3)
    labels = (0, 1, 0, 0, 1, 2, 0, 1, 2, 2, 1)
    return [
        Sample(name=f"s{number}.jpg", source=source, label=label)
        for number, (source, label) in enumerate(zip(sources, labels, strict=True))
    ]


def test_groups_are_found_over_all_shards_with_conflicting_labels_first(tmp_path: Path) -> None:
    found = _find(tmp_path, _mixed())
    assert (found.samples, found.groups_found, found.conflicting) == (4, 3, 1)
    assert [(group.names, group.labels) for group in found.groups] == [
        (("s3.jpg", "s8.jpg"), (0, 2)),
        (("s1.jpg", "s4.jpg", "s7.jpg"), (1, 1, 1)),
        (("s5.jpg", "s9.jpg"), (2, 2)),
    ]
    assert [group.sample_id for group in found.groups] == [3, 1, 5]
    assert [group.is_conflicting for group in found.groups] == [True, False, False]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("multi", [(0, 2), (1,), (0,)]),
        ("float", [(0.1, 2.0, 3.0), (1.0, 0.0, 0.0), (0.5, 2.0, 3.0)]),
    ],
)
def test_labels_beside_the_record_are_compared(
    tmp_path: Path, kind: Any, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.survey.facts._PIECE_LABEL_BYTES", 24)  # a row or a few a piece
    labels = LabelSpec(kind=kind, width=3)
    encode = labels.encode_multi if kind == "multi" else labels.encode_floats
    samples = [
        Sample(name=f"s{number}", source=source, row=encode(values[label]))
        for number, (source, label) in enumerate([(4, 0), (6, 1), (4, 0), (6, 2), (1, 0)])
    ]
    found = _find(tmp_path, samples, labels=labels)
    assert (found.samples, found.conflicting) == (2, 1)
    assert [group.labels for group in found.groups] == [
        (values[1], values[2]),
        (values[0], values[0]),
    ]


def test_samples_without_labels_do_not_conflict(tmp_path: Path) -> None:
    samples = [Sample(name=f"s{number}", source=8) for number in range(3)]
    found = _find(tmp_path, samples, labels=LabelSpec(kind="none"))
    assert (found.samples, found.conflicting, found.groups[0].labels) == (2, 0, ((), (), ()))


def test_all_groups_are_counted_and_the_first_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.survey.duplicates.GROUPS_LISTED_MAX", 2)
    monkeypatch.setattr("feeder.survey.duplicates.MEMBERS_LISTED_MAX", 3)
    large = [Sample(name=f"large{number}", source=1, label=number == 8) for number in range(9)]
    small = [Sample(name=f"small{number}", source=2 + number // 2) for number in range(8)]
    found = _find(tmp_path, [*small, *large])
    assert (found.samples, found.groups_found, found.conflicting) == (12, 5, 1)
    assert [group.samples for group in found.groups] == [9, 2]
    # the only one of its class is listed, although there are earlier ones
    assert found.groups[0].names == ("large0", "large1", "large8")
    assert found.groups[1].names == ("small0", "small1")


def test_the_list_has_a_line_for_each_group(tmp_path: Path) -> None:
    samples = [
        Sample(name="caf\udce9.jpg", source=3, label=1),  # a byte that is not UTF-8
        Sample(name="b\n.jpg", source=3, label=2),
        Sample(name="c", source=4),
    ]
    write_duplicates(tmp_path, _find(tmp_path, samples))
    lines = (tmp_path / DUPLICATES_NAME).read_text("ascii").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"labels": [1, 2], "names": ["caf\udce9.jpg", "b\n.jpg"], "samples": 2}
    ]
    write_duplicates(tmp_path, Duplicates())
    assert (tmp_path / DUPLICATES_NAME).read_bytes() == b""
