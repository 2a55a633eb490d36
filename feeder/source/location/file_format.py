"""What a file is, by its first bytes: a tar, TFRecords, Parquet, or something that is no source."""

import re
import struct
import zlib
from pathlib import Path
from typing import Final, Literal, NamedTuple

from feeder.errors import DatasetError
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import open_regular_file, read_regular

FormatName = Literal[
    "tar", "imagenet-train", "imagenet-val", "tfrecord", "parquet", "compressed", "other"
]
_START_BYTES: Final = 1 << 16
_BLOCK_BYTES: Final = 512
_MEMBERS_MAX: Final = 8
_CHECKSUM: Final = slice(148, 156)
_RECORD: Final = struct.Struct("<QI")
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)
_CLASS_TAR: Final = re.compile(r"n\d{8}\.tar", re.ASCII)
_CLASS_IMAGE: Final = re.compile(r"n\d{8}_\d+\.\w+", re.ASCII)
_VALIDATION_IMAGE: Final = re.compile(r"ILSVRC2012_val_\d{8}\.\w+", re.ASCII)
_UNPACK: Final = "unpack it, or compress it as .gz or .zst"
_USE_PYTHON: Final = "read it in Python and give its images to feeder.pack_samples"
CONVERT: Final = "convert it to PNG or JPEG"
_OTHERS: Final[tuple[tuple[bytes, str, str], ...]] = (
    (rb"PK\x03\x04", "a zip archive", "unzip it, and pack the folder"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it, and pack the folder"),
    (rb"Rar!", "a RAR archive", "unpack it, and pack the folder"),
    (rb"BZh", "compressed by bzip2", _UNPACK),
    (rb"\xfd7zXZ\x00", "compressed by xz", _UNPACK),
    (rb"\x04\x22\x4d\x18", "compressed by lz4", _UNPACK),
    (rb"ARROW1\x00\x00", "an Arrow file", "write it as Parquet (Dataset.to_parquet)"),
    (rb"\xff\xff\xff\xff", "an Arrow stream", "write it as Parquet (Dataset.to_parquet)"),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", _USE_PYTHON),
    (rb"SQLite format 3\x00", "an SQLite database", _USE_PYTHON),
    (rb"\x93NUMPY", "a NumPy array", _USE_PYTHON),
    (rb".{16}\xde\xc0\xef\xbe", "an LMDB database", _USE_PYTHON),
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


_BY_SUFFIX: Final = (
    (re.compile(r"\.mds(\.\w+)?$", re.IGNORECASE), "a shard of MosaicML's streaming (MDS)"),
    (re.compile(r"\.beton$", re.IGNORECASE), "an FFCV file"),
)


class FileFormat(NamedTuple):
    """What a file is."""

    name: FormatName
    what: str
    """For a message: "a tar"."""
    remedy: str
    """What to do where it is no source; may be empty."""


def look_at_file(path: Path) -> FileFormat:
    """Return what the regular file at ``path`` is; DatasetError if it cannot be read."""
    found = _look_into(path)
    for suffix, what in _BY_SUFFIX if found.name in ("other", "compressed") else ():
        if suffix.search(path.name):
            return FileFormat("other", what, _USE_PYTHON)
    return found


def _look_into(path: Path) -> FileFormat:
    try:
        start = read_regular(path, _START_BYTES)
    except OSError as error:
        shown = printable(path_to_text(path))
        raise DatasetError(f"source {shown} cannot be read: {error.strerror}") from None
    if not start:
        return FileFormat("other", "empty", "")
    if start.startswith(_ZSTD) or _ZSTD_SKIPPABLE.match(start):
        return _by_name(path)
    content = _inflate(start)
    found = _recognise_content(content)
    if found is not None and found.name == "tar" and content is start:
        return _find_imagenet(path) or found
    if found is None and content is not start:
        return FileFormat("compressed", "compressed, but neither a tar nor TFRecords", "")
    return found or recognise_other(start)


def describe_file(path: Path) -> str:
    """Return what the file at ``path`` is and what to do about it: "is a QOI image: convert it"."""
    try:
        found = look_at_file(path)
    except DatasetError as error:
        return str(error).removeprefix(f"source {printable(path_to_text(path))} ")
    return f"is {found.what}: {found.remedy}" if found.remedy else f"is {found.what}"


def _has_valid_length(header: bytes) -> bool:
    """Return whether 12 bytes can begin a TFRecord: a length and the masked CRC-32C of it."""
    _, stored = _RECORD.unpack(header)
    crc = _crc32c(header[:8])
    return bool(stored == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _recognise_content(start: bytes) -> FileFormat | None:
    if _is_tar(start[:_BLOCK_BYTES]):
        return FileFormat("tar", "a tar", "")
    if len(start) >= _RECORD.size and _has_valid_length(start[: _RECORD.size]):
        return FileFormat("tfrecord", "a TFRecord file", "")
    if start.startswith((b"PAR1", b"PARE")):  # the latter is encrypted, as its reader reports
        return FileFormat("parquet", "a Parquet file", "")
    return None


def recognise_other(start: bytes) -> FileFormat:
    """Return what a file is that begins with ``start`` and is no source."""
    for pattern, what, remedy in _OTHERS:
        if re.match(pattern, start, re.DOTALL):
            return FileFormat("other", what, remedy)
    return FileFormat("other", "of no known format", "")


def _is_tar(block: bytes) -> bool:
    """Return whether a block is a tar's header, of any age, or its end."""
    if len(block) < _BLOCK_BYTES:
        return False
    if not any(block):
        return True
    digits = block[_CHECKSUM].strip(b" \x00")
    if not digits or not all(0x30 <= digit <= 0x37 for digit in digits):
        return False
    others = block[: _CHECKSUM.start] + b" " * 8 + block[_CHECKSUM.stop :]
    signed = sum(others) - 256 * sum(each > 127 for each in others)  # as old programs added
    return int(digits, 8) in (sum(others), signed)


def _inflate(start: bytes) -> bytes:
    """Return the beginning of what is compressed by gzip or zlib, else ``start`` itself."""
    is_zlib = start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0
    if not start.startswith(_GZIP) and not is_zlib:
        return start
    engine = zlib.decompressobj(wbits=47)  # either of both
    try:
        return engine.decompress(start, 2 * _BLOCK_BYTES)
    except zlib.error:
        return b"" if start.startswith(_GZIP) else start


def _by_name(path: Path) -> FileFormat:
    """Return what a file compressed by zstd holds by its name: the library may be missing."""
    name = path.name.lower()
    if ".tar" in name or name.endswith(".tzst"):
        return FileFormat("tar", "a tar", "")
    if "tfrec" in name:
        return FileFormat("tfrecord", "a TFRecord file", "")
    return FileFormat("compressed", "compressed by zstd", "name it .tar.zst if it is a tar")


def _find_imagenet(path: Path) -> FileFormat | None:
    """Return which of ImageNet's archives a tar is, by its first files."""
    import tarfile  # only here: worker processes import this module, and never need it

    try:
        with open_regular_file(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for _ in range(_MEMBERS_MAX):
                member = archive.next()
                if member is None or member.isreg():
                    break
    except (OSError, tarfile.TarError, ValueError, EOFError, OverflowError):
        return None  # its reader reports what is wrong with it
    name = member.name.rpartition("/")[2] if member is not None else ""
    is_class = _CLASS_TAR.fullmatch(path.name) and _CLASS_IMAGE.fullmatch(name)
    if is_class or _CLASS_TAR.fullmatch(name):
        return FileFormat("imagenet-train", "of ImageNet's training archive", "")
    if _VALIDATION_IMAGE.fullmatch(name):
        return FileFormat("imagenet-val", "ImageNet's validation archive", "")
    return None


def _crc32c(data: bytes) -> int:
    """Return the CRC-32C of a few bytes; a library, for many, may be missing."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
