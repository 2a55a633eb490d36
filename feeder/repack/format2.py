"""Datasets of shard format 2 and manifest version 3, read for ``feeder repack`` alone.

A shard has the current header, label rows and names (``feeder.dataset.format``), with other
records and blobs. A blob is

    ⌈tiles × l / 8⌉ bytes             the length of each segment, l bits each, lowest bits first
    ⌈tiles × (p₀ + p₁ + p₂) / 8⌉      DC predictions within rows: repacking has no use for them
    header_bytes                      the header of a baseline JPEG, from SOI to SOS
    …                                 the scan: the segments' Huffman codes, row by row
    8                                 zero

A tile is one MCU row high. The codes are those of a JPEG, but no zero byte follows 0xFF, and the
prediction of DC is 0 at the start of each row. So a JPEG with a restart marker after each row has
the same codes.

The manifest lacks ``content`` and ``former``, and is otherwise the current one.
"""

import json
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.files import files_at
from feeder.dataset.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    canonical_json,
    damaged_manifest,
    decode_manifest,
    fingerprint_of,
    read_manifest,
)
from feeder.dataset.manifest import VERSION as CURRENT_VERSION
from feeder.dataset.proven_shard import compare_header
from feeder.dataset.reader import ShardIndex, ShardReader
from feeder.errors import ConfigError, DatasetError

VERSION: Final = 2
_MANIFEST_VERSION: Final = 3
_ZERO_BYTES: Final = 8  # at the end of a blob
_DRI: Final = b"\xff\xdd\x00\x04"
_RST0: Final = 0xD0
_EOI: Final = b"\xff\xd9"

RECORD: Final = np.dtype(
    [
        ("offset", "<u8"),  # of the blob, from the start of the shard
        ("checksum", "<u8"),  # xxh3_64 of the blob
        ("blob_bytes", "<u4"),
        ("label", "<u4"),
        ("name_offset", "<u4"),  # in the names
        ("name_bytes", "<u2"),
        ("width", "<u2"),
        ("height", "<u2"),
        ("header_bytes", "<u2"),
        ("sof_offset", "<u2"),
        ("tile_columns", "<u2"),
        ("tile_rows", "<u2"),
        ("tile_mcus", "u1"),
        ("mcu_width_px", "u1"),
        ("mcu_height_px", "u1"),
        ("subsampling", "u1"),  # feeder.jpeg.recode.Subsampling
        ("flags", "<u2"),  # Oddity: those below PPM
        ("table_bits", "<u4"),  # l, p₀, p₁ and p₂, a byte each from the low end
        ("source_checksum", "<u8"),
        ("record_checksum", "<u4"),  # low half of xxh3_64 of the 60 bytes before it
    ]
)


def load_former(folder: Path) -> Manifest:
    """Return the checked manifest of a dataset of format 2, as a current one without content.

    ``former`` is its fingerprint, ``content`` is zeros. Raises ConfigError for a dataset of the
    current format, DatasetError for a folder without a dataset, a damaged manifest and any other
    version.
    """
    data, where = read_manifest(files_at(folder)), str(folder / MANIFEST_NAME)
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or fields.get("version") != _MANIFEST_VERSION:
        version = decode_manifest(data, where).version  # raises what is wrong with any other
        raise ConfigError(f"{folder} has dataset format version {version} already: use it as it is")
    if canonical_json(fields) != data:
        raise damaged_manifest(where, "not as it was written")
    former = fields.pop("fingerprint", None)
    if former != fingerprint_of(fields):
        raise damaged_manifest(where, "its fingerprint does not match")
    fields |= {"version": CURRENT_VERSION, "former": former, "content": "0" * 32}
    fields["fingerprint"] = fingerprint_of(fields)
    return decode_manifest(canonical_json(fields), where)


def read_index(reader: ShardReader, entry: ShardEntry, number: int, label_bytes: int) -> ShardIndex:
    """Return the index of shard ``number``, with records of dtype RECORD.

    ``reader`` is one of ``VERSION``, ``entry`` the manifest's entry, ``label_bytes`` the size of a
    label row. Raises DatasetError unless the shard has the size and the index that ``entry`` says.
    """
    index = reader.read_index()
    different = compare_header(reader, entry, number, label_bytes)
    if different or not index.is_intact:
        raise DatasetError(
            f"{reader.file.where} does not match the manifest; restore it, or pack the source again"
        )
    return index._replace(records=index.records.view(RECORD))


def convert_to_jpeg(blob: bytes | bytearray, record: np.void) -> bytes:
    """Return a baseline JPEG with a sample's coefficients, and a restart marker after each row.

    ``record`` is of dtype RECORD. Takes 0.3 ms for 110 KB. Raises ValueError where the blob does
    not have the parts that its record says.
    """
    columns, rows = int(record["tile_columns"]), int(record["tile_rows"])
    length_bits, *dc_bits = int(record["table_bits"]).to_bytes(4, "little")
    lengths_bytes = -(-columns * rows * length_bits // 8)
    header_begin = lengths_bytes - (-columns * rows * sum(dc_bits) // 8)
    scan_begin = header_begin + int(record["header_bytes"])
    mcu_width_px = int(record["mcu_width_px"])
    if not (length_bits and mcu_width_px) or scan_begin > len(blob):
        raise ValueError("its tables and header do not match its record")
    lengths = _read_fields(blob[:lengths_bytes], columns * rows, length_bits)
    row_bits = lengths.reshape(rows, columns).sum(axis=1)
    scan_bytes = -(-int(row_bits.sum()) // 8)
    if not row_bits.all() or scan_begin + scan_bytes + _ZERO_BYTES != len(blob):
        raise ValueError("the lengths of its segments do not add up to its scan")

    header = blob[header_begin:scan_begin]
    mcus = -(-int(record["width"]) // mcu_width_px)
    parts = [header[:2], _DRI + mcus.to_bytes(2, "big"), header[2:]]
    scan = np.frombuffer(blob, np.uint8)[scan_begin:]
    begin = 0
    for row, bits in enumerate(row_bits.tolist()):
        first, shift = divmod(begin, 8)
        piece = scan[first : first + -(-bits // 8) + 1]
        codes = (piece[:-1] << shift) | (piece[1:] >> (8 - shift))
        codes[-1] |= (1 << (-bits % 8)) - 1
        parts.append(codes.tobytes().replace(b"\xff", b"\xff\x00"))
        parts.append(bytes((0xFF, _RST0 + row % 8)))
        begin += bits
    parts[-1] = _EOI
    return b"".join(parts)


def _read_fields(table: bytes | bytearray, count: int, bits: int) -> NDArray[np.int64]:
    """Return the ``count`` numbers (count,) of ``bits`` bits each in ``table``."""
    digits = np.unpackbits(np.frombuffer(table, np.uint8), count=count * bits, bitorder="little")
    return digits.reshape(count, bits) @ (1 << np.arange(bits))
