"""The records of a TFRecord file: u64 length, masked CRC-32C of it, data, masked CRC-32C of these.

The length's CRC is checked while the records are walked: behind a wrong length nothing can be
found. The data's CRC is checked where the data are read, so walking a file that can seek does not
read them. Of compressed files all is read: GZIP and ZLIB, which TensorFlow writes, and zstd.
"""

import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import google_crc32c

from feeder.errors import DatasetError, ResourceError
from feeder.source.decompress import Content, StreamContent
from feeder.source.item_bytes import FILE_BYTES_MAX

HEADER_BYTES: Final = 12
CRC_BYTES: Final = 4
_READ_BYTES: Final = 1 << 18
_MEND: Final = "copy the file again, or leave it out"


class Record(NamedTuple):
    """A record of a file, or of what a compressed file holds."""

    at: int
    """Of its first byte, that of the length."""
    size_bytes: int
    """Of its data."""
    data: bytes
    """With the CRC; empty if they have not been read, or are more than FILE_BYTES_MAX."""


def check_library() -> None:
    """Raise ResourceError if CRC-32C would be computed in Python, at 1 MB/s."""
    if google_crc32c.implementation == "python":
        raise ResourceError(
            "google-crc32c has no C extension here, and checking TFRecords would take days: "
            "install a wheel of it (`pip install --force-reinstall google-crc32c`)"
        )


def is_intact(data: bytes) -> bool:
    """Return whether the masked CRC-32C in the last four of ``data`` is that of the others."""
    crc: int = google_crc32c.value(data[:-CRC_BYTES])
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF
    return masked == int.from_bytes(data[-CRC_BYTES:], "little")


def walk_records(content: Content, path: str) -> Iterator[Record]:
    """Yield the records of a TFRecord file; ``path`` is for messages.

    Their data are read only if ``content`` cannot seek, or is ZLIB. Raises DatasetError for what
    is no TFRecord file or has no records, for a wrong CRC of a length, and for a file that ends
    within a record; behind the latter two nothing can be read.
    """
    at = 0
    header = content.read(HEADER_BYTES)
    if not header:
        raise DatasetError(f"{path} is empty: {_MEND}")
    if content.is_seekable and _is_zlib(header):
        content.seek(0)
        content = StreamContent(_inflate(content, path))
        header = content.read(HEADER_BYTES)
    while header:
        if len(header) < HEADER_BYTES:
            raise _truncated(at, path)
        if not is_intact(header):
            raise _bad_length(at, path)
        size = int.from_bytes(header[:8], "little")
        stop = at + HEADER_BYTES + size + CRC_BYTES
        if content.size_bytes is not None and stop > content.size_bytes:
            raise _truncated(at, path)
        is_read = not content.is_seekable and size <= FILE_BYTES_MAX
        data = content.read(size + CRC_BYTES) if is_read else b""
        if is_read and len(data) < size + CRC_BYTES:
            raise _truncated(at, path)
        yield Record(at, size, data)
        content.seek(stop)
        if content.tell() < stop:
            raise _truncated(at, path)
        at = stop
        header = content.read(HEADER_BYTES)


def _bad_length(at: int, path: str) -> DatasetError:
    if at == 0:
        return DatasetError(
            f"{path} is no TFRecord file, or its start is damaged: the CRC of the first record's "
            "length is wrong"
        )
    return DatasetError(
        f"{path} is damaged: the length of the record at byte {at} has a wrong CRC, so nothing "
        f"behind it can be read: {_MEND}"
    )


def _truncated(at: int, path: str) -> DatasetError:
    return DatasetError(f"{path} ends within the record that begins at byte {at}: {_MEND}")


def _is_zlib(header: bytes) -> bool:
    is_stream = header[0] == 0x78 and int.from_bytes(header[:2], "big") % 31 == 0
    return is_stream and not (len(header) == HEADER_BYTES and is_intact(header))


def _inflate(content: Content, path: str) -> Iterator[bytes]:
    """Yield what a ZLIB file holds."""
    engine = zlib.decompressobj()
    data = b""
    while not engine.eof:
        data = data or content.read(_READ_BYTES)
        if not data:
            raise DatasetError(f"{path} ends within its compressed data: {_MEND}")
        try:
            yield engine.decompress(data, _READ_BYTES)
        except zlib.error as error:
            reason = str(error).rpartition(": ")[2]
            raise DatasetError(
                f"{path} is damaged: its ZLIB stream has an {reason}: {_MEND}"
            ) from None
        data = engine.unconsumed_tail
    if engine.unused_data or content.read(1):
        raise DatasetError(f"{path} is damaged: more follows the end of its ZLIB stream: {_MEND}")
