"""A dataset on disk: manifest and whole shards, decoded and verified."""

import contextlib
import hashlib
import json
import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from feeder.dataset.format import HEADER_BYTES, RECORD, Oddity, checksum, decode_header
from feeder.dataset.manifest import Manifest, ShardEntry, canonical_json, decode_manifest
from feeder.dataset.opened import Dataset
from feeder.errors import DatasetError
from feeder.jpeg.crop_decode import check_blob
from feeder.pack.task_pool import Message, perform_here
from feeder.plan.labels import LabelSpec
from feeder.plan.packing import pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from tests.fuzz.mutate import mutate_bytes, mutate_value
from tests.fuzz.native_targets import damage_blob
from tests.fuzz.pictures import tiled_jpegs
from tests.fuzz.target import Target, folder, refusal, written
from tests.support.synthetic_sets import Sample, write_set

_SHARD = "shard-00000.fds"
_CLASSES = ("cat", "dog")
_SAMPLES = 3
_FIELDS = [name for name in RECORD.names or () if name != "record_checksum"]
_KINDS = (
    LabelSpec(),
    LabelSpec(kind="multi", width=len(_CLASSES)),
    LabelSpec(kind="float", width=3),
)
_RECIPES = (
    Recipe.for_split("train", batch_size=2, image_size=16),
    Recipe.for_split("train", batch_size=2, image_size=8, scale=(0.01, 0.1), dct_scaling=False),
    Recipe.for_split("val", batch_size=2, image_size=32, resize_size=32),
    Recipe.for_split("train", batch_size=2, image_size=16, partial_decode=False),
    Recipe.for_split("train", batch_size=2, image_size=16, auto_augment="rand-augment", hue=0.1),
)


@cache
def _sets() -> tuple[tuple[bytes, Manifest], ...]:
    """Return shards of a few samples each, and the manifests of datasets of one shard."""
    made = []
    for number in range(len(tiled_jpegs()) // _SAMPLES):
        labels = _KINDS[number % len(_KINDS)]
        samples = [
            Sample(
                name=f"cat/{row}é\udcff.jpg",
                tiled=tiled,
                label=row % labels.count_record_labels(len(_CLASSES)),
                row=bytes(labels.stored_bytes),
                flags=Oddity(1 << row),
            )
            for row, tiled in enumerate(tiled_jpegs()[_SAMPLES * number :][:_SAMPLES])
        ]
        classes = () if labels.kind == "float" else _CLASSES
        path = folder() / f"valid-{number}"
        manifest = write_set(path, samples, labels=labels, classes=classes, shards=1)
        made.append(((path / _SHARD).read_bytes(), manifest))
    return tuple(made)


def _with_shard(manifest: Manifest, shard: bytes) -> Manifest:
    """Return the manifest of a dataset of this one shard, valid or not."""
    index = f"{int.from_bytes(shard[48:56], 'little'):016x}"
    entry = msgspec.structs.replace(manifest.shards[0], bytes=len(shard), index_xxh3=index)
    return msgspec.structs.replace(manifest, shards=(entry,)).sealed()


# --- The manifest -------------------------------------------------------------------------------


def _manifest_bytes(rng: random.Random) -> bytes:
    _, valid = rng.choice(_sets())
    if rng.random() < 0.3:
        shards = tuple(
            ShardEntry(name=f"shard-{k:05d}.fds", samples=1, bytes=9, index_xxh3="") for k in (0, 1)
        )
        valid = msgspec.structs.replace(valid, shards=shards, samples=2).sealed()
    data = valid.encode()
    if rng.random() < 0.7:
        fields = mutate_value(rng, msgspec.to_builtins(valid))
        if rng.random() < 0.4 and isinstance(fields, dict):
            number = rng.choice((1, 2**20, 2**40, 2**47, 2**48, 2**48 + 1, 2**63))
            fields["samples"] = number
            entry = msgspec.to_builtins(valid.shards[0])
            fields["shards"] = [entry | {"samples": number, "bytes": number}]
        data = _sealed(fields)
    if rng.random() < 0.3:
        data = mutate_bytes(rng, data, tokens=(b"NaN", b"1e999", b"[" * 3000, b'"\\ud800"', b"{}"))
    return data


def _sealed(fields: Any) -> bytes:
    """manifest.json with these fields and a matching fingerprint."""
    try:
        if isinstance(fields, dict):
            fields.pop("fingerprint", None)
            digest = hashlib.blake2b(canonical_json(fields), digest_size=16)
            fields["fingerprint"] = digest.hexdigest()
        return canonical_json(fields)
    except (ValueError, RecursionError):  # NaN, or nested too deeply
        return b"[" * 5000


def _hold_manifest(manifest: Manifest, data: bytes) -> bool:
    """It encodes to exactly these bytes, and can be opened unless a limit is exceeded."""
    assert manifest.encode() == data
    try:
        Dataset(Path(), manifest, 8).close()
    except DatasetError as error:
        return refusal(error, data)
    return True


# --- Shards -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DamagedShard:
    """A shard file, its manifest, and the recipe to read it with."""

    shard: bytes
    manifest: Manifest
    recipe: Recipe
    epoch: int


def _damaged_shard(rng: random.Random) -> DamagedShard:
    """Return a damaged shard; most checksums are valid, so that the damage reaches later checks."""
    valid, manifest = rng.choice(_sets())
    kind = rng.random()
    shard = mutate_bytes(rng, valid, edits_max=3) if kind < 0.15 else _resealed(rng, valid)
    if rng.random() < 0.9:
        manifest = _with_shard(manifest, shard)
    return DamagedShard(shard, manifest, rng.choice(_RECIPES), rng.randrange(3))


def _resealed(rng: random.Random, valid: bytes) -> bytes:
    """Return a shard with damaged blobs, fields or label rows, and updated checksums."""
    header = decode_header(valid, "valid")
    records = np.frombuffer(valid, RECORD, header.samples, header.records_offset).copy()
    body, names = valid[: header.records_offset], valid[header.names_offset :]
    label_rows = valid[header.labels_offset : header.names_offset]
    for row in {rng.randrange(_SAMPLES) for _ in range(rng.randint(0, 2))}:
        record = records[row]
        start, size = int(record["offset"]), int(record["blob_bytes"])
        if rng.random() < 0.6:
            blob = damage_blob(rng, body[start : start + size])[:size]
            body = body[:start] + blob + bytes(size - len(blob)) + body[start + size :]
            record["checksum"] = checksum(body[start : start + size])
            if rng.random() < 0.5:
                with contextlib.suppress(ValueError):
                    record["content_checksum"] = check_blob(body[start : start + size])[0]
        if rng.random() < 0.6:
            for _ in range(rng.choice((1, 1, 2))):
                _damage_field(rng, records, row)
            record["checksum"] = checksum(body[int(record["offset"]) :][: record["blob_bytes"]])
        if rng.random() < 0.95:
            record["record_checksum"] = checksum(record.tobytes()[:56])
    if rng.random() < 0.1:
        names = mutate_bytes(rng, names, edits_max=1)
    if label_rows and rng.random() < 0.3:
        label_rows = rng.randbytes(len(label_rows))
    index = records.tobytes() + label_rows + names
    fields = replace(header, names_bytes=len(names), index_checksum=checksum(index))
    if rng.random() < 0.05:
        name = rng.choice(("records_offset", "names_offset", "samples", "shard", "names_bytes"))
        fields = replace(fields, **{name: rng.choice((0, 64, 72, 2**32 - 1, len(valid)))})
    return fields.encode() + body[HEADER_BYTES:] + index


def _damage_field(rng: random.Random, records: np.ndarray, row: int) -> None:
    name = rng.choice(_FIELDS)
    bits = 8 * records.dtype[name].itemsize
    value = int(records[row][name])
    limit = 2**bits - 1
    if name == "blob_bytes":  # anything longer than the file is refused at once
        limit = 2**20
    choices = (0, 1, value + 1, value - 1, value * 2, value ^ 1 << rng.randrange(bits), limit)
    records[name][row] = max(0, min(rng.choice(choices), limit))


def _check_reading(damaged: DamagedShard) -> bool:
    """All samples decode to pixels, or DatasetError of one line."""
    recipe = damaged.recipe
    shape = pixel_layout_of(recipe.packing).image_shape(recipe.image_size)
    accepted = 0
    written(damaged.shard, _SHARD)
    with Dataset(folder(), damaged.manifest, 8) as dataset:
        reader = SampleReader(dataset, recipe)
        for sample in range(_SAMPLES):
            pixels = np.empty((1, *shape), np.int8)
            labels = np.empty((1, *dataset.labels.row_shape), dataset.labels.dtype)
            dataset.describe(sample)
            try:
                reader.fill(
                    np.array([sample]), seed=1, epoch=damaged.epoch, pixels=pixels, labels=labels
                )
            except DatasetError as error:
                refusal(error)
            else:
                accepted += 1
    return accepted == _SAMPLES


def _check_verifying(damaged: DamagedShard) -> bool:
    """Each problem is one line; a shard without problems can be read."""
    written(damaged.shard, _SHARD)
    manifest = damaged.manifest
    setup = {
        "path": str(folder()),
        "classes": len(manifest.classes),
        "labels": msgspec.to_builtins(manifest.labels),
        "tile_width_px": 128,
    }
    task = {"number": 0, "first_sample": 0, "entry": msgspec.to_builtins(manifest.shards[0])}
    reports: list[Message] = []
    perform_here("feeder.pack.verify", setup, task, reports.append)
    json.dumps(reports)
    problems = [report["problem"] for report in reports if "problem" in report]
    for problem in problems:
        refusal(problem)
    if problems:
        return False
    assert _check_reading(damaged), "a verified sample cannot be read"
    return True


TARGETS = (
    Target(
        "manifest",
        _manifest_bytes,
        lambda data: decode_manifest(data, "manifest.json"),
        30_000,
        DatasetError,
        _hold_manifest,
    ),
    Target(
        "shard-read",
        _damaged_shard,
        _check_reading,
        12_000,
        native=True,
        memory_bytes=600 << 20,
        slow_s=5.0,
    ),
    Target(
        "shard-verify",
        _damaged_shard,
        _check_verifying,
        6_000,
        native=True,
        memory_bytes=600 << 20,
        slow_s=5.0,
    ),
)
