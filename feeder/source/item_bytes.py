"""Reads the bytes of one source file, and recognises image formats by their first bytes.

Invariant: no bytes are returned of a file that is not the one that was listed.
"""

import errno
import hashlib
import os
import re
import struct
from typing import Final, Literal

from feeder.errors import DatasetError
from feeder.process.path_text import decode_name, printable
from feeder.process.regular_file import open_regular, read_descriptor
from feeder.source.location.file_format import CONVERT, recognise_other

FILE_BYTES_MAX: Final = 1 << 30
JPEG_SUFFIXES: Final = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})
SNIFF_BYTES: Final = 32
JPEG: Final = "JPEG"

FaultKind = Literal[
    "bad-label",
    "bad-name",
    "bad-row",
    "corrupt",
    "device",
    "empty",
    "link",
    "no-image",
    "no-label",
    "not-image",
    "too-large",
    "truncated",
    "two-images",
    "two-labels",
    "unreadable",
    "unsupported",
]
"""Why an item cannot become a sample; feeder.survey.words describes each."""


_PORTABLE_ANYMAP: Final = re.compile(rb"P[1-6]\s+[#\d]")


class SourceError(DatasetError):
    """Raised for a source file that cannot become a sample; it goes to quarantine.

    ``reason`` is the detail of ``kind``, identical on every run.
    """

    def __init__(self, kind: FaultKind, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind: FaultKind = kind
        self.reason = reason


class SourceChangedError(DatasetError):
    """Raised for a file that is not the one that was listed: the whole packing ends.

    ``change`` is what happened, ``remedy`` what to do about it, which readers do not know.
    """

    def __init__(self, change: str, remedy: str = "") -> None:
        super().__init__(f"{change}: {remedy}" if remedy else change)
        self.change = change


def check_listed(path: bytes, listed: int | None, descriptor: int | None = None) -> None:
    """Raise SourceChangedError unless the file at ``path`` has the stamp that was listed.

    ``listed`` is 0 for a file that could not be looked at, None for any. With ``descriptor``, what
    was read from that is compared: call this after reading, so that a write meanwhile counts.
    """
    if listed is None:
        return
    stamp = stamp_path(path) if descriptor is None else stamp_status(os.fstat(descriptor))
    if stamp != listed:
        what = "it was written again or replaced" if stamp and listed else "it is gone"
        what = what if listed else "there was no such file"
        raise SourceChangedError(
            f"{printable(decode_name(path))} has changed since it was listed ({what})"
        )


def sniff_format(start: bytes) -> str | None:
    """Return Pillow's name for the format of a file that begins with ``start``; None: no image."""
    if start.startswith(b"\xff\xd8\xff"):
        return JPEG
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return "WEBP"
    if start.startswith((b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")):  # + is BigTIFF
        return "TIFF"
    if start.startswith(b"BM") and start[6:10] == bytes(4):  # the reserved fields
        return "BMP"
    if _PORTABLE_ANYMAP.match(start):
        return "PPM"
    return None


def describe_foreign(start: bytes) -> SourceError:
    """Return why a file is no image that begins with ``start``, which is none that Feeder reads."""
    other = recognise_other(start)
    if not other.remedy:
        return SourceError("not-image", f"starts with {start[:8].hex(' ')}")
    kind: FaultKind = "unsupported" if other.remedy == CONVERT else "not-image"
    return SourceError(kind, f"it is {other.what}: {other.remedy}")


def sniff_file(path: bytes) -> str | None:
    """Return the format of the file at ``path`` as ``sniff_format`` does; None if unreadable."""
    try:
        descriptor = open_regular(path)
    except OSError:
        return None
    try:
        return sniff_format(os.read(descriptor, SNIFF_BYTES))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_source(
    path: bytes, bytes_max: int = FILE_BYTES_MAX, *, listed: int | None = None
) -> bytes:
    """Return the content of a regular file; SourceError (unreadable, empty or too-large).

    ``listed`` is the stamp that it must have, as ``check_listed`` compares it.
    """
    try:
        return _read_regular(path, bytes_max, listed)
    except SourceError:
        check_listed(path, listed)
        raise


def _read_regular(path: bytes, bytes_max: int, listed: int | None) -> bytes:
    try:
        descriptor = open_regular(path)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        reason = "a dangling link" if os.path.islink(path) else _error_text(error)
        raise SourceError("unreadable", reason) from None
    try:
        status = os.fstat(descriptor)
        if status.st_size > bytes_max:
            raise SourceError("too-large", f"{status.st_size} bytes, more than {bytes_max}")
        data = read_descriptor(descriptor, bytes_max)
        check_listed(path, listed, descriptor)
    except OSError as error:
        raise SourceError("unreadable", _error_text(error)) from None
    finally:
        os.close(descriptor)
    if not data:
        raise SourceError("empty", "the file has no bytes")
    return data


def _error_text(error: OSError) -> str:
    text = error.strerror or type(error).__name__
    return text[0].lower() + text[1:]


def stamp_status(status: os.stat_result) -> int:
    """The stamp of the file with this status, 1 .. 2**64 - 1: a hash which another file, or this
    one written again, does not have.

    A new file can be given the size and the modification time of the one before, but not its change
    time. Neither device nor inode counts: some file systems number them anew.
    """
    fields = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    data = struct.pack("<QQQ", *(field & 2**64 - 1 for field in fields))
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


def stamp_path(path: str | bytes | os.PathLike[str]) -> int:
    """The stamp of the file at ``path``, links followed; 0 where none can be looked at."""
    try:
        return stamp_status(os.stat(path))
    except OSError:
        return 0
