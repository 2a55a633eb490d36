"""The bytes of a shard: header, sample blobs, records, label rows, names. Opens no file.

A shard is ``[header 64 B][blobs][records][label rows][names]``, everything little-endian;
feeder/README.md describes every byte. Label rows are there only for labels that do not fit into the
record (``feeder.plan.labels``). Records, label rows and names are the shard's index. The header
holds its own checksum and the index's; each record holds its own and its blob's.

Invariant: a header that decodes is consistent; anything else raises DatasetError, whatever the
bytes are.
"""

import enum
import os
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from feeder.errors import DatasetError
from feeder.plan.labels import STORED_BYTES_MAX

MAGIC: Final = b"FEEDSHRD"
VERSION: Final = 3
HEADER_BYTES: Final = 64
RECORD_BYTES: Final = 64
ALIGNMENT_BYTES: Final = 8  # of blobs and records, so that every field can be mapped

# magic, version, header bytes, shard, samples, records offset, names offset, names bytes, index
_HEADER = struct.Struct("<8sHHIQQQQQ")
_HEADER_CHECKSUM = struct.Struct("<Q")
_RECORD = struct.Struct("<QQQQIIIIHHHH")
_RECORD_CHECKSUM = struct.Struct("<Q")

RECORD: Final = np.dtype(
    [
        ("offset", "<u8"),  # of the blob, from the start of the shard
        ("checksum", "<u8"),  # xxh3_64 of the blob
        ("content_checksum", "<u8"),  # XXH64 of the image: its header and coefficients
        ("source_checksum", "<u8"),  # xxh3_64 of the source's bytes; 0 where unknown
        ("blob_bytes", "<u4"),
        ("label", "<u4"),
        ("name_offset", "<u4"),  # in the names
        ("flags", "<u4"),  # Oddity
        ("name_bytes", "<u2"),
        ("width", "<u2"),  # in pixels, without the padding to whole MCUs
        ("height", "<u2"),
        ("subsampling", "<u2"),  # feeder.jpeg.recode.Subsampling
        ("record_checksum", "<u8"),  # xxh3_64 of the 56 bytes before it
    ]
)


class Oddity(enum.IntFlag):
    """How a sample's source was unusual: in its record, and counted in the manifest."""

    PROGRESSIVE = 1 << 0  # re-coded without loss, as all JPEGs that can be
    ARITHMETIC = 1 << 1  # likewise
    CMYK = 1 << 2  # a CMYK or YCCK JPEG, converted to RGB and encoded again
    PNG = 1 << 3  # this and the next five: converted to RGB and encoded as JPEG
    WEBP = 1 << 4
    GIF = 1 << 5
    BMP = 1 << 6
    TIFF = 1 << 7
    RARE_JPEG = 1 << 8  # a JPEG that cannot be tiled as it is
    WRONG_SUFFIX = 1 << 9  # the suffix names another format than the bytes
    WARNED = 1 << 10  # the decoder had a cosmetic complaint
    EXIF_IGNORED = 1 << 11  # has an orientation, which was ignored, as torchvision does
    EXIF_APPLIED = 1 << 12  # was rotated; without loss unless REENCODED
    EXIF_REENCODED = 1 << 13  # was rotated and encoded again, as lossless rotation was impossible
    RESIZED = 1 << 14  # was larger than --max-side
    REENCODED = 1 << 15  # a JPEG that --max-side, --quality or --subsampling had encoded again
    PPM = 1 << 16  # PBM, PGM and PPM, as PNG
    CLIPPED = 1 << 17  # has 16 bits a sample, and levels above --png16-max

    def kinds(self) -> list[str]:
        """Return the names under which the manifest counts these flags, e.g. ``wrong-suffix``."""
        return [str(flag.name).lower().replace("_", "-") for flag in self]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHeader:
    """The first 64 bytes of a shard."""

    shard: int
    samples: int
    records_offset: int
    names_offset: int
    names_bytes: int
    index_checksum: int  # xxh3_64 of records + label rows + names

    @property
    def labels_offset(self) -> int:
        """Where the label rows begin, which is where the records end."""
        return self.records_offset + self.samples * RECORD_BYTES

    @property
    def label_bytes(self) -> int:
        """Bytes of a label row: LabelSpec.stored_bytes; 0 in an empty shard."""
        return (self.names_offset - self.labels_offset) // max(1, self.samples)

    @property
    def file_bytes(self) -> int:
        """The size that the whole shard file must have."""
        return self.names_offset + self.names_bytes

    def encode(self) -> bytes:
        """Return the 64 bytes, checksum included."""
        fields = _HEADER.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            self.shard,
            self.samples,
            self.records_offset,
            self.names_offset,
            self.names_bytes,
            self.index_checksum,
        )
        return fields + _HEADER_CHECKSUM.pack(checksum(fields))


def decode_header(data: bytes, where: str, expected: int = VERSION) -> ShardHeader:
    """Return the header in ``data`` (64 bytes); ``where`` names the shard in errors.

    ``expected`` is the version that the shard must have.

    Raises DatasetError for a foreign file, another version, a wrong checksum or impossible offsets.
    """
    if len(data) < HEADER_BYTES:
        raise DatasetError(f"{where} is truncated: {len(data)} bytes; restore it or pack again")
    magic, version, header_bytes, shard, samples, records, names, names_bytes, index = (
        _HEADER.unpack_from(data)
    )
    if magic != MAGIC:
        raise DatasetError(f"{where} is not a shard (wrong magic bytes); restore it or pack again")
    (stored,) = _HEADER_CHECKSUM.unpack_from(data, _HEADER.size)
    intact = stored == checksum(data[: _HEADER.size])
    if version not in (VERSION, expected) and intact:
        raise other_version(where, "shard", version, VERSION)
    if not intact or version != expected or header_bytes != HEADER_BYTES:
        raise DatasetError(f"{where} has a damaged header; restore it or pack again")
    header = ShardHeader(
        shard=shard,
        samples=samples,
        records_offset=records,
        names_offset=names,
        names_bytes=names_bytes,
        index_checksum=index,
    )
    if (
        records < HEADER_BYTES
        or records % ALIGNMENT_BYTES
        or not 0 <= header.label_bytes <= STORED_BYTES_MAX
        or names != header.labels_offset + samples * header.label_bytes
    ):
        raise DatasetError(f"{where} has a header with impossible offsets; pack again")
    return header


def other_version(where: str, kind: str, version: int, own: int) -> DatasetError:
    """Return the error for a dataset's file ``where``, which is not of this feeder's version."""
    if version > own:
        remedy = "upgrade feeder"
    elif version == own - 1:
        remedy = f"run `feeder repack {os.path.dirname(where) or '.'} NEW`"
    else:
        remedy = "pack the source again"
    return DatasetError(
        f"{where} is of {kind} format version {version}, this feeder reads {own}: {remedy}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One record's fields as Python integers, for writing; readers use the dtype RECORD."""

    offset: int
    checksum: int
    content_checksum: int
    source_checksum: int
    blob_bytes: int
    label: int
    name_offset: int
    flags: int
    name_bytes: int
    width: int
    height: int
    subsampling: int

    def encode(self) -> bytes:
        """Return the 64 bytes, checksum included; struct.error where a field is out of range."""
        fields = _RECORD.pack(
            self.offset,
            self.checksum,
            self.content_checksum,
            self.source_checksum,
            self.blob_bytes,
            self.label,
            self.name_offset,
            self.flags,
            self.name_bytes,
            self.width,
            self.height,
            self.subsampling,
        )
        return fields + _RECORD_CHECKSUM.pack(checksum(fields))


def record_is_intact(data: bytes | memoryview) -> bool:
    """Return whether a record's 64 bytes match the checksum at their end."""
    (stored,) = _RECORD_CHECKSUM.unpack_from(data, _RECORD.size)
    return bool(stored == checksum(data[: _RECORD.size]))


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return xxh3_64 of ``data``: every checksum inside shards but that of an image's content."""
    return xxhash.xxh3_64_intdigest(data)


def aligned(offset: int) -> int:
    """Return the first multiple of ALIGNMENT_BYTES at or after ``offset``."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def shard_name(number: int) -> str:
    """Return the file name of shard ``number``, e.g. ``shard-00003.fds``."""
    return f"shard-{number:05d}.fds"
