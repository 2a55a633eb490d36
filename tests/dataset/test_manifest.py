"""The manifest: canonical, sealed, and every damage is detected."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from feeder.dataset import content
from feeder.dataset.format import shard_name
from feeder.dataset.manifest import (
    MANIFEST_NAME,
    WORK_FOLDER_NAME,
    Manifest,
    ShardEntry,
    canonical_json,
    decode_manifest,
    load_manifest,
    samples_in_shard,
)
from feeder.errors import DatasetError
from feeder.plan.labels import LabelSpec
from tests.support.synthetic_sets import EVERY_KIND, Sample, tiled_image, write_set


def make_manifest(sample_count: int = 7, shard_count: int = 3, **changes: Any) -> Manifest:
    entries = tuple(
        ShardEntry(
            name=shard_name(number),
            samples=samples_in_shard(sample_count, shard_count, number),
            bytes=1000,
            index_xxh3=f"{number:016x}",
        )
        for number in range(shard_count)
    )
    manifest = Manifest(
        samples=sample_count,
        classes=("cat", "dög\udcff"),
        tile_width_px=32,
        seed=0,
        options={"apply_exif": False, "quality": 95},
        odd={"png": 1},
        subsampling={"s420": sample_count},
        quarantined=0,
        quarantine_xxh3="0" * 16,
        source_bytes=12345,
        shards=entries,
        content="c" * 32,
    )
    changed = msgspec.structs.replace(manifest, **changes)
    return changed if "fingerprint" in changes else changed.sealed()


@pytest.mark.parametrize("text", ["[" * 5000, "two\nlines", "\x9b31m", "\u2028"])
def test_manifests_text_is_escaped_and_shortened_in_errors(text: str) -> None:
    fields = msgspec.to_builtins(make_manifest())
    for strange in ({**fields, text: 1}, {**fields, "format": text}):
        with pytest.raises(DatasetError, match="damaged") as caught:
            decode_manifest(canonical_json(strange), "x")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400


def test_fingerprint_depends_on_every_field() -> None:
    prints = {make_manifest().fingerprint}
    changes = {
        "seed": 1,
        "tile_width_px": 64,
        "classes": ("cat", "dog"),
        "quarantine_xxh3": "1" * 16,
        "odd": {},
        "duplicates": 1,
        "content": "0" * 32,
        "former": "0" * 32,
    }
    prints |= {make_manifest(**{name: value}).fingerprint for name, value in changes.items()}
    assert len(prints) == 1 + len(changes)
    assert all(len(each) == 32 for each in prints)


def test_every_changed_byte_is_found() -> None:
    data = make_manifest(2, 1).encode()
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(DatasetError, match=r"^m "):
                decode_manifest(bytes(damaged), "m")
    for cut in (data[:-1], data + b"\n", data.replace(b" ", b""), b"", b"null", b"[" * 100_000):
        with pytest.raises(DatasetError, match="is damaged"):
            decode_manifest(cut, "m")


@pytest.mark.parametrize(
    ("version", "remedy"), [(5, "upgrade feeder"), (1, "pack the source again")]
)
def test_another_version_names_both_versions_and_the_remedy(version: int, remedy: str) -> None:
    fields = json.loads(make_manifest().encode()) | {"version": version, "unknown": "field"}
    del fields["labels"]
    with pytest.raises(DatasetError, match=f"version {version}, this feeder reads 4: {remedy}"):
        decode_manifest(canonical_json(fields), "m")


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(2, "pack the source again"), (3, "run `feeder repack {folder} NEW`")],
    ids=("packed lanes", "Huffman codes"),
)
def test_manifests_that_older_feeders_wrote_name_the_remedy(
    version: int, remedy: str, tmp_path: Path
) -> None:
    """Of 7 images in 2 shards."""
    golden = Path(__file__).parent / "golden" / f"manifest-{version}.json"
    (tmp_path / MANIFEST_NAME).write_bytes(golden.read_bytes())
    with pytest.raises(DatasetError) as caught:
        load_manifest(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / MANIFEST_NAME} is of dataset format version {version}, this feeder reads 4: "
        + remedy.format(folder=tmp_path)
    )


def test_malformed_fingerprint_is_damage() -> None:
    for field in ("content", "former"):
        for value in ("0" * 31, "0" * 33, "G" * 32, "0" * 32 + "\n"):
            with pytest.raises(DatasetError, match=rf"m is damaged.*\$\.{field}"):
                decode_manifest(make_manifest(**{field: value}).encode(), "m")


@pytest.mark.parametrize(
    "labels",
    [
        {"kind": "index", "width": 2},
        {"kind": "multi", "width": 0},
        {"kind": "multi", "width": 65_537},
        {"kind": "float", "width": 4_097},
        {"kind": "float", "width": True},
        {"kind": "text", "width": 1},
        {"kind": "multi"},
        {"kind": "index", "width": 1, "depth": 1},
        None,
    ],
)
def test_impossible_labels_are_damage(labels: object) -> None:
    fields = json.loads(make_manifest().encode())
    fields["labels"] = labels
    with pytest.raises(DatasetError, match="m is damaged"):
        decode_manifest(canonical_json(fields), "m")


@pytest.mark.parametrize(
    "changes",
    [
        {},  # an undecodable name is among the classes
        {"labels": LabelSpec(kind="multi", width=2), "classes": ("cat", "dog")},
        {"labels": LabelSpec(kind="float", width=4_096), "classes": ()},
        {"labels": LabelSpec(kind="none"), "classes": ()},
    ],
)
def test_every_kind_of_labels_survives_a_round_trip(changes: dict[str, Any]) -> None:
    manifest = make_manifest(**changes)
    assert decode_manifest(manifest.encode(), "x") == manifest
    assert manifest.encode().isascii()
    assert not changes or manifest.fingerprint != make_manifest(classes=("cat", "dog")).fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 8}, "which is not its share"),
        ({"samples": 0, "shards": ()}, "counts no samples"),
        ({"samples": 2**60}, "or too many"),
        ({"classes": ()}, "it has no classes"),
        ({"labels": LabelSpec(kind="multi", width=3)}, "it has 2 classes, its labels are of 3"),
        ({"labels": LabelSpec(kind="float")}, "it has 2 classes, its labels are of kind float"),
        ({"labels": LabelSpec(kind="none")}, "it has 2 classes, its labels are of kind none"),
        ({"format": "tar"}, "format is 'tar'"),
        ({"fingerprint": "0" * 32}, "fingerprint does not match"),
        (
            {
                "samples": 1,
                "shards": (ShardEntry(name="../x", samples=1, bytes=1, index_xxh3="0"),),
            },
            "shard 0 is called '../x'",
        ),
    ],
)
def test_sealed_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        decode_manifest(make_manifest(**changes).encode(), "m")


def test_error_names_what_is_at_the_path(tmp_path: Path) -> None:
    def refused(match: str, path: Path = tmp_path) -> None:
        with pytest.raises(DatasetError, match=match):
            load_manifest(path)

    refused(r"no dataset at .*: there is no such folder", tmp_path / "nothing")
    (tmp_path / "file").touch()
    refused("is a file: a dataset is a folder", tmp_path / "file")
    refused("is not a dataset")
    (tmp_path / WORK_FOLDER_NAME).mkdir()
    refused("is unfinished: run the same feeder pack")
    path = tmp_path / MANIFEST_NAME
    path.touch()
    os.truncate(path, 300 << 20)
    refused("is too large for a manifest")
    path.unlink()
    path.mkdir()
    refused("cannot be read: Is a directory")


@pytest.mark.parametrize("labels", EVERY_KIND, ids=lambda each: each.kind)
@pytest.mark.parametrize("shards", [1, 3])
def test_content_is_the_hash_that_is_described_and_depends_on_nothing_else(
    labels: LabelSpec, shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it changes, no job resumes: increment the versions of manifest and state."""
    samples = [
        Sample(
            name=f"{number}.jpg",
            tiled=replace(tiled_image(), content_checksum=2**63 + number),
            label=number % 2 if labels.kind == "index" else 0,
            row=bytes([number]) * labels.stored_bytes,
        )
        for number in range(11)
    ]
    classes = ("cat", "dög\udcff")
    description = {
        "classes": list(classes),
        "labels": {"kind": labels.kind, "width": labels.width},
        "samples": 11,
        "shards": shards,
    }
    expected = hashlib.blake2b(
        json.dumps(description, sort_keys=True, indent=1).encode() + b"\n", digest_size=16
    )
    for each in samples:
        expected.update(each.tiled.content_checksum.to_bytes(8, "little"))
        expected.update(each.row or each.label.to_bytes(4, "little"))
    for piece_rows in (1, 3, 100):
        monkeypatch.setattr(content, "_PIECE_ROWS", piece_rows)
        written = write_set(tmp_path, samples, labels=labels, classes=classes, shards=shards)
        assert written.content == expected.hexdigest()
