"""The manifest: canonical, sealed, and every damage is detected."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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

GOLDEN = Path(__file__).parent / "golden"


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
    return msgspec.structs.replace(manifest, **changes).sealed()


def test_round_trip_keeps_everything_even_undecodable_names() -> None:
    manifest = make_manifest()
    assert decode_manifest(manifest.encode(), "x") == manifest
    assert manifest.encode().isascii()


@pytest.mark.parametrize("text", ["[" * 5000, "two\nlines", "\x9b31m", "\u2028"])
def test_manifests_text_is_escaped_and_shortened_in_errors(text: str) -> None:
    fields = msgspec.to_builtins(make_manifest())
    for strange in ({**fields, text: 1}, {**fields, "format": text}):
        with pytest.raises(DatasetError, match="damaged") as caught:
            decode_manifest(canonical_json(strange), "x")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400


def test_fingerprint_depends_on_every_field() -> None:
    prints = {
        make_manifest().fingerprint,
        make_manifest(seed=1).fingerprint,
        make_manifest(tile_width_px=64).fingerprint,
        make_manifest(classes=("cat", "dog")).fingerprint,
        make_manifest(quarantine_xxh3="1" * 16).fingerprint,
        make_manifest(odd={}).fingerprint,
        make_manifest(duplicates=1).fingerprint,
        make_manifest(content="0" * 32).fingerprint,
        make_manifest(former="0" * 32).fingerprint,
    }
    assert len(prints) == 9
    assert all(len(each) == 32 for each in prints)


def test_every_single_flipped_bit_is_found() -> None:
    data = make_manifest(2, 1).encode()
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(DatasetError, match=r"^m "):
                decode_manifest(bytes(damaged), "m")


def test_missing_and_additional_bytes_are_found() -> None:
    data = make_manifest().encode()
    for damaged in (data[:-1], data + b"\n", data.replace(b" ", b""), b"", b"null", b"[" * 100_000):
        with pytest.raises(DatasetError, match="is damaged"):
            decode_manifest(damaged, "m")


def test_newer_version_names_both_versions_and_the_upgrade() -> None:
    fields = json.loads(make_manifest().encode())
    fields["version"] = 5
    fields["unknown"] = "of later feeders"
    with pytest.raises(DatasetError, match="version 5, this feeder reads 4: upgrade feeder"):
        decode_manifest(canonical_json(fields), "m")


def test_older_version_is_to_be_packed_again() -> None:
    fields = json.loads(make_manifest().encode())
    fields["version"] = 1
    del fields["labels"], fields["duplicates"]
    with pytest.raises(DatasetError, match="version 1, this feeder reads 4: pack the source again"):
        decode_manifest(canonical_json(fields), "m")


def test_a_dataset_with_packed_lanes_is_to_be_packed_again(tmp_path: Path) -> None:
    # of 7 images in 2 shards, as feeder pack wrote it before version 3
    (tmp_path / MANIFEST_NAME).write_bytes((GOLDEN / "manifest-2.json").read_bytes())
    with pytest.raises(DatasetError) as caught:
        load_manifest(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / MANIFEST_NAME} is of dataset format version 2, this feeder reads 4: "
        "pack the source again"
    )


def test_a_dataset_with_huffman_codes_is_to_be_repacked(tmp_path: Path) -> None:
    # of 7 images in 2 shards, as feeder pack wrote it before version 4
    (tmp_path / MANIFEST_NAME).write_bytes((GOLDEN / "manifest-3.json").read_bytes())
    with pytest.raises(DatasetError) as caught:
        load_manifest(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / MANIFEST_NAME} is of dataset format version 3, this feeder reads 4: "
        f"run `feeder repack {tmp_path} NEW`"
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
    ("labels", "classes"),
    [
        (LabelSpec(kind="multi", width=2), ("cat", "dog")),
        (LabelSpec(kind="float", width=4_096), ()),
        (LabelSpec(kind="none"), ()),
    ],
)
def test_every_kind_of_labels_survives_a_round_trip(
    labels: LabelSpec, classes: tuple[str, ...]
) -> None:
    manifest = make_manifest(labels=labels, classes=classes)
    assert decode_manifest(manifest.encode(), "x") == manifest
    assert manifest.fingerprint != make_manifest(classes=("cat", "dog")).fingerprint


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


def test_wrong_fingerprint_is_refused() -> None:
    manifest = msgspec.structs.replace(make_manifest(), fingerprint="0" * 32)
    with pytest.raises(DatasetError, match="fingerprint does not match"):
        decode_manifest(manifest.encode(), "m")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_dataset_errors_only(data: bytes) -> None:
    with pytest.raises(DatasetError):
        decode_manifest(data, "m")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(Manifest.__struct_fields__), _JSON, max_size=5), _JSON)
def test_arbitrary_values_in_fields_raise_dataset_errors_only(
    fields: dict[str, Any], instead: Any
) -> None:
    whole = json.loads(make_manifest().encode())
    for value in ({**whole, **fields}, instead):
        data = json.dumps(value).encode()  # NaN and lone surrogates included, never canonical
        with pytest.raises(DatasetError):
            decode_manifest(data, "m")


def test_error_names_what_is_at_the_path(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no dataset at .*: there is no such folder"):
        load_manifest(tmp_path / "nothing")
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(DatasetError, match="is a file: a dataset is a folder"):
        load_manifest(file)
    with pytest.raises(DatasetError, match="is not a dataset"):
        load_manifest(tmp_path)
    (tmp_path / WORK_FOLDER_NAME).mkdir()
    with pytest.raises(DatasetError, match="is unfinished: run the same feeder pack"):
        load_manifest(tmp_path)
    path = tmp_path / MANIFEST_NAME
    path.touch()
    os.truncate(path, 300 << 20)
    with pytest.raises(DatasetError, match="is too large for a manifest"):
        load_manifest(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(DatasetError, match="cannot be read: Is a directory"):
        load_manifest(tmp_path)
