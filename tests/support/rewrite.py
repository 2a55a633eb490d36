"""Datasets with valid checksums and invalid content, which packing never produces."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from feeder.dataset.format import RECORD, checksum, decode_header
from feeder.dataset.manifest import MANIFEST_NAME
from feeder.dataset.opened import Dataset


def rewrite_record(folder: Path, sample: int, **fields: int) -> None:
    """Change fields of a sample's record, and every checksum that covers it."""
    with Dataset.open(folder) as dataset:
        shard, row = (int(place[0]) for place in dataset.layout.locate(np.array([sample])))
        manifest = dataset.manifest
    path = folder / manifest.shards[shard].name
    data = path.read_bytes()
    header = decode_header(data, path.name)
    records = np.frombuffer(data, RECORD, header.samples, header.records_offset).copy()
    for name, value in fields.items():
        records[name][row] = value
    records["record_checksum"][row] = checksum(records[row].tobytes()[:56])
    index = records.tobytes() + data[header.labels_offset :]
    changed = replace(header, index_checksum=checksum(index)).encode()
    path.write_bytes(changed + data[len(changed) : header.records_offset] + index)
    shards = list(manifest.shards)
    shards[shard] = msgspec.structs.replace(shards[shard], index_xxh3=f"{checksum(index):016x}")
    sealed = msgspec.structs.replace(manifest, shards=tuple(shards)).sealed()
    (folder / MANIFEST_NAME).write_bytes(sealed.encode())
