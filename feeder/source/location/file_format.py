"""Files that are no source: what they are by their first bytes, and how compressed ones begin."""

import re
import zlib
from typing import Final

GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)
"""A frame, or one to be skipped, with which pzstd's files begin."""
_INFLATED_BYTES: Final = 1024
UNPACK: Final = "unpack it, or compress it as .gz or .zst"
_USE_PYTHON: Final = "read it in Python and give its images to feeder.pack_samples"
CONVERT: Final = "convert it to PNG or JPEG"
_OTHERS: Final[tuple[tuple[bytes, str, str], ...]] = (
    (rb"PK\x03\x04", "a zip archive", "unzip it, and pack the folder"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it, and pack the folder"),
    (rb"Rar!", "a RAR archive", "unpack it, and pack the folder"),
    (rb"BZh", "compressed by bzip2", UNPACK),
    (rb"\xfd7zXZ\x00", "compressed by xz", UNPACK),
    (rb"\x04\x22\x4d\x18", "compressed by lz4", UNPACK),
    (rb"ARROW1\x00\x00", "an Arrow file", "write it as Parquet (Dataset.to_parquet)"),
    (rb"\xff\xff\xff\xff", "an Arrow stream", "write it as Parquet (Dataset.to_parquet)"),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", _USE_PYTHON),
    (rb"SQLite format 3\x00", "an SQLite database", _USE_PYTHON),
    (rb"\x93NUMPY", "a NumPy array", _USE_PYTHON),
    (rb"\x0a\x23\xd7\xce", "an MXNet RecordIO file", _USE_PYTHON),
    (
        rb"version https://git-lfs",
        "a Git LFS pointer and no image",
        "fetch it with git lfs pull",
    ),
    (
        rb"(?i)\s*<(!doctype\s+html|html)",
        "a page of HTML, as of a failed download",
        "download it again",
    ),
    (rb"qoif", "a QOI image", CONVERT),
    (rb"DDS ", "a DDS image", CONVERT),
    (rb"\xff\x0a|\x00\x00\x00\x0cJXL ", "a JPEG XL image", CONVERT),
    (rb"\x00\x00\x00\x0cjP  |\xff\x4f\xff\x51", "a JPEG 2000 image", CONVERT),
    (rb".{4}ftyp(hei|hev|mif1|msf1)", "a HEIC image", CONVERT),
    (rb".{4}ftypavi", "an AVIF image", CONVERT),
    (rb"\x00\x00\x01\x00", "an ICO image", CONVERT),
    (rb"8BPS", "a Photoshop image", CONVERT),
    (rb"v/1\x01", "an OpenEXR image", CONVERT),
    (rb"P(7\s|[Ff]\s)", "a PAM or PFM image", CONVERT),
    (rb"\s*<(\?xml|svg)", "XML or SVG", CONVERT),
    (rb"%PDF-", "a PDF", CONVERT),
    (rb".{128}DICM", "a DICOM image", CONVERT),
)
"""Formats that Feeder does not read: their first bytes, a name and a remedy."""


def is_zstd(start: bytes) -> bool:
    """Return whether a file that begins so is compressed by zstd."""
    return _ZSTD.match(start) is not None


def is_zlib(start: bytes) -> bool:
    """Return whether a file that begins so may be compressed as ZLIB."""
    return start[:1] == b"\x78" and int.from_bytes(start[:2], "big") % 31 == 0


def inflate_start(start: bytes) -> bytes:
    """Return the first KiB of what gzip or zlib compressed, else ``start`` itself."""
    if not start.startswith(GZIP) and not is_zlib(start):
        return start
    engine = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)  # gzip or ZLIB
    try:
        return engine.decompress(start, _INFLATED_BYTES)
    except zlib.error:
        return b"" if start.startswith(GZIP) else start


def recognise_other(start: bytes, name: str = "") -> tuple[str, str]:
    """Describe a file that is no source, by its first bytes and its name, for messages.

    Also returns a remedy, or "" where none is known.
    """
    if name and is_zstd(start):
        what, remedy = "compressed by zstd", "name it .tar.zst if it is a tar"
    elif name and inflate_start(start) is not start:
        what, remedy = "compressed, but neither a tar nor TFRecords", ""
    else:
        others = (other for other in _OTHERS if re.match(other[0], start, re.DOTALL))
        _, what, remedy = next(others, (b"", "of no known format" if start else "empty", ""))
    if name.lower().endswith(".beton"):
        return "an FFCV file", _USE_PYTHON
    if re.search(r"\.mds(\.\w+)?$", name, re.IGNORECASE):  # also compressed
        return "a shard of MosaicML's streaming (MDS)", _USE_PYTHON
    return what, remedy
