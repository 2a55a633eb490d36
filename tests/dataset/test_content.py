"""The content fingerprint: equal where images, labels and order are, however they are packed."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from feeder.dataset import content
from feeder.jpeg.recode import Subsampling, TiledJpeg
from feeder.plan.labels import LabelSpec
from tests.support.synthetic_sets import EVERY_KIND, FLOATS, INDEX, MULTI, NONE, Sample, write_set

CLASSES = ("cat", "dög\udcff")


def tiled(content_checksum: int) -> TiledJpeg:
    return TiledJpeg(
        blob=b"blob",
        content_checksum=content_checksum,
        width=8,
        height=8,
        subsampling=Subsampling.GREY,
        was_progressive=False,
        was_arithmetic=False,
        warnings=(),
    )


def make_samples(labels: LabelSpec, count: int = 11) -> list[Sample]:
    return [
        Sample(
            name="x.jpg",
            tiled=tiled(2**63 + number),
            label=number % 2 if labels.kind == "index" else 0,
            row=bytes([number]) * labels.stored_bytes,
        )
        for number in range(count)
    ]


def fingerprint(
    folder: Path,
    samples: list[Sample],
    labels: LabelSpec = INDEX,
    *,
    shards: int = 3,
    classes: tuple[str, ...] = CLASSES,
) -> str:
    """Write the samples as a dataset, and return its content fingerprint."""
    return write_set(folder, samples, labels=labels, classes=classes, shards=shards).content


@pytest.mark.parametrize("labels", EVERY_KIND, ids=lambda each: each.kind)
def test_it_is_the_hash_that_is_described(
    labels: LabelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = make_samples(labels)
    description = {
        "classes": list(CLASSES),
        "labels": {"kind": labels.kind, "width": labels.width},
        "samples": 11,
        "shards": 3,
    }
    expected = hashlib.blake2b(
        json.dumps(description, sort_keys=True, indent=1).encode() + b"\n", digest_size=16
    )
    for each in samples:
        expected.update(each.tiled.content_checksum.to_bytes(8, "little"))
        expected.update(each.row or each.label.to_bytes(4, "little"))
    for piece_rows in (1, 3, 100):
        monkeypatch.setattr(content, "_PIECE_ROWS", piece_rows)
        assert fingerprint(tmp_path, samples, labels) == expected.hexdigest()


def test_it_is_pinned(tmp_path: Path) -> None:
    # If it changes, no job resumes: increment the versions of manifest and state.
    assert fingerprint(tmp_path, make_samples(INDEX)) == "de1a96f3ff790721fade4151e4602178"


@pytest.mark.parametrize("labels", [INDEX, MULTI, FLOATS], ids=lambda each: each.kind)
def test_every_image_and_label_and_their_order_change_it(labels: LabelSpec, tmp_path: Path) -> None:
    samples = make_samples(labels)
    swapped = [*samples[:4], samples[5], samples[4], *samples[6:]]
    variants = [samples, swapped, samples[:-1]]
    for at, each in enumerate(samples):
        other_image = replace(each, tiled=tiled(at))
        other_label = replace(each, label=7) if labels is INDEX else replace(each, row=b"\xee")
        other_label = replace(other_label, row=other_label.row.ljust(labels.stored_bytes, b"\xee"))
        variants += [[*samples[:at], new, *samples[at + 1 :]] for new in (other_image, other_label)]
    assert len({fingerprint(tmp_path, variant, labels) for variant in variants}) == len(variants)


def test_classes_kinds_of_labels_and_the_number_of_shards_change_it(tmp_path: Path) -> None:
    samples = make_samples(INDEX)
    prints = {
        fingerprint(tmp_path, samples),
        fingerprint(tmp_path, samples, shards=4),
        fingerprint(tmp_path, samples, classes=CLASSES[::-1]),
        fingerprint(tmp_path, samples, NONE),
    }
    assert len(prints) == 4


def test_nothing_else_changes_it(tmp_path: Path) -> None:
    samples = make_samples(INDEX)
    others = [
        replace(
            each,
            name="other.png",
            tiled=replace(each.tiled, blob=bytes(99), width=100, subsampling=Subsampling.S420),
        )
        for each in samples
    ]
    assert fingerprint(tmp_path, samples) == fingerprint(tmp_path, others)
