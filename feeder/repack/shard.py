"""Repacks one shard: the task of a repacking's worker process (see ``pack.task_pool``).

Each sample's coefficients are read twice: by libjpeg-turbo out of the JPEG that the old blob
becomes, and by Feeder's decoder out of the new blob. The new one is written only if both are the
same image.
"""

from contextlib import closing
from typing import Any, Final

import msgspec
import numpy as np

from feeder.dataset.format import checksum
from feeder.dataset.manifest import ShardEntry
from feeder.dataset.reader import ShardReader
from feeder.dataset.writer import ShardWriter
from feeder.errors import DatasetError
from feeder.jpeg.crop_decode import check_blob
from feeder.jpeg.recode import RecodeError, TiledJpeg, tile_jpeg
from feeder.pack.task_pool import Report
from feeder.pack.work_folder import WorkFolder
from feeder.process.path_text import decode_name, path_from_text, printable
from feeder.repack import format2

_REPORT_EVERY: Final = 32  # samples


class RepackSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all shards of a repacking share; paths as ``path_to_text`` writes them."""

    old: str
    new: str
    label_bytes: int
    tile_width_px: int


class RepackTask(msgspec.Struct, frozen=True, kw_only=True):
    """Which shard to repack, and its manifest entry."""

    number: int
    first_sample: int
    entry: ShardEntry


def perform(setup: dict[str, Any], task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Repack the shard into a finished part; reports and returns new {"samples", "bytes"}."""
    settings, shard = msgspec.convert(setup, RepackSetup), msgspec.convert(task, RepackTask)
    path = path_from_text(settings.old) / shard.entry.name
    part = WorkFolder(path_from_text(settings.new)).part_path(shard.number)
    label_bytes = settings.label_bytes
    counts = {"samples": 0, "bytes": 0}
    with (
        closing(ShardReader(path, version=format2.VERSION)) as reader,
        ShardWriter(part, shard=shard.number, label_bytes=label_bytes) as writer,
    ):
        index = format2.read_index(reader, shard.entry, shard.number, label_bytes)
        for row, record in enumerate(index.records):
            start = int(record["name_offset"])
            name = decode_name(index.names[start : start + int(record["name_bytes"])])
            where = f"sample {shard.first_sample + row} ({printable(name)}) in {path}"
            blob = _read_blob(reader, record, where)
            writer.append(
                _convert(blob, record, settings.tile_width_px, where),
                label=int(record["label"]),
                name=name,
                flags=int(record["flags"]),
                label_row=index.label_rows[row].tobytes(),
                source_checksum=int(record["source_checksum"]),
            )
            counts["samples"] += 1
            counts["bytes"] += len(blob)
            if counts["samples"] == _REPORT_EVERY:
                report(counts)
                counts = {"samples": 0, "bytes": 0}
        writer.finish()
    return counts


def _read_blob(reader: ShardReader, record: np.void, where: str) -> bytes:
    offset, blob_bytes = int(record["offset"]), int(record["blob_bytes"])
    if not reader.holds_blob(offset, blob_bytes):
        raise _damaged(where, "its record points out of the shard")
    blob = bytearray(blob_bytes)
    reader.read_into(offset, memoryview(blob))
    if checksum(blob) != int(record["checksum"]):
        raise _damaged(where, "its checksum does not match")
    return bytes(blob)


def _convert(blob: bytes, record: np.void, tile_width_px: int, where: str) -> TiledJpeg:
    """Return a sample of format 2 in the current format, proved to be the same image."""
    try:
        tiled = tile_jpeg(format2.convert_to_jpeg(blob, record), tile_width_px)
    except (RecodeError, ValueError) as error:
        raise _damaged(where, str(error)) from None
    geometry = (tiled.width, tiled.height, tiled.subsampling)
    stored = (int(record["width"]), int(record["height"]), int(record["subsampling"]))
    if tiled.warnings or geometry != stored:
        raise _damaged(where, "its scan does not match its record")
    if check_blob(tiled.blob)[:3] != (tiled.content_checksum, tiled.width, tiled.height):
        raise DatasetError(
            f"{where} has different coefficients after repacking: this is a fault of this "
            "machine's memory or of feeder; report it if it happens again"
        )
    return tiled


def _damaged(where: str, what: str) -> DatasetError:
    return DatasetError(f"{where} is damaged ({what}): restore it, or pack the source again")
