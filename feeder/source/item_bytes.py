"""Reads the bytes of one source file, and recognises image formats by their first bytes."""

import errno
import os
import re
from typing import Final, Literal

from feeder.errors import DatasetError
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


def read_source(path: bytes, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """Return the content of a regular file; SourceError (unreadable, empty or too-large)."""
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
