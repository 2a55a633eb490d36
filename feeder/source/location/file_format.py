"""What a file is, by its first bytes: a tar, TFRecords, Parquet, or something that is no source."""

import re
import struct
import tarfile
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
_CONVERT: Final = "convert it to PNG or JPEG"
_OTHERS: Final[tuple[tuple[bytes, int, str, str], ...]] = (
    (b"PK\x03\x04", 0, "a zip archive", "unzip it, and pack the folder"),
    (b"7z\xbc\xaf\x27\x1c", 0, "a 7z archive", "unpack it, and pack the folder"),
    (b"Rar!", 0, "a RAR archive", "unpack it, and pack the folder"),
    (b"BZh", 0, "compressed by bzip2", _UNPACK),
    (b"\xfd7zXZ\x00", 0, "compressed by xz", _UNPACK),
    (b"\x04\x22\x4d\x18", 0, "compressed by lz4", _UNPACK),
    (b"ARROW1\x00\x00", 0, "an Arrow file", "write it as Parquet (Dataset.to_parquet)"),
    (b"\xff\xff\xff\xff", 0, "an Arrow stream", "write it as Parquet (Dataset.to_parquet)"),
    (b"\x89HDF\r\n\x1a\n", 0, "an HDF5 file", _USE_PYTHON),
    (b"SQLite format 3\x00", 0, "an SQLite database", _USE_PYTHON),
    (b"\x93NUMPY", 0, "a NumPy array", _USE_PYTHON),
    (b"\xde\xc0\xef\xbe", 16, "an LMDB database", _USE_PYTHON),
    (b"\x0a\x23\xd7\xce", 0, "an MXNet RecordIO file", _USE_PYTHON),
    (b"version https://git-lfs", 0, "a Git LFS pointer and no image", "fetch it with git lfs pull"),
    (b"<!DOCTYPE", 0, "a page of HTML, as of a failed download", "download it again"),
    (b"<html", 0, "a page of HTML, as of a failed download", "download it again"),
    (b"qoif", 0, "a QOI image", _CONVERT),
    (b"DDS ", 0, "a DDS image", _CONVERT),
    (b"ftypavif", 4, "an AVIF image", _CONVERT),
    (b"ftyphei", 4, "a HEIC image", _CONVERT),
    (b"ftypmif1", 4, "a HEIC image", _CONVERT),
    (b"\xff\x0a", 0, "a JPEG XL image", _CONVERT),
    (b"\x00\x00\x00\x0cJXL ", 0, "a JPEG XL image", _CONVERT),
    (b"\x00\x00\x00\x0cjP  ", 0, "a JPEG 2000 image", _CONVERT),
    (b"\xff\x4f\xff\x51", 0, "a JPEG 2000 image", _CONVERT),
    (b"\x76\x2f\x31\x01", 0, "an OpenEXR image", _CONVERT),
    (b"8BPS", 0, "a Photoshop image", _CONVERT),
    (b"%PDF-", 0, "a PDF", _CONVERT),
    (b"DICM", 128, "a DICOM image", _CONVERT),
)


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
    return found or _recognise_other(start)


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


def _recognise_other(start: bytes) -> FileFormat:
    for magic, at, what, remedy in _OTHERS:
        if start.startswith(magic, at):
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
