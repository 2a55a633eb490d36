"""The bytes of an image file: all of them are read, the first ones give the format.

Invariant: no bytes are returned of a file that is not the one that was listed.
"""

import errno
import os
import re
from typing import Final, Literal

from feeder.errors import DatasetError
from feeder.source.location.file_format import CONVERT, recognise_other
from feeder.source.location.storage import StoredFile, check_listed, open_stored

FILE_BYTES_MAX: Final = 1 << 30
SNIFF_BYTES: Final = 32
JPEG: Final = "JPEG"
JPEG_SUFFIXES: Final = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})
_FORMATS: Final = tuple(
    (re.compile(pattern, re.DOTALL), name)
    for pattern, name in (
        (rb"\xff\xd8\xff", JPEG),
        (rb"\x89PNG\r\n\x1a\n", "PNG"),
        (rb"GIF8[79]a", "GIF"),
        (rb"RIFF....WEBP", "WEBP"),
        (rb"II[*+]\x00|MM\x00[*+]", "TIFF"),  # + is BigTIFF
        (rb"BM....\x00{4}", "BMP"),  # the reserved fields
        (rb"P[1-6]\s+[#\d]", "PPM"),
    )
)
"""How files of the formats that Feeder reads begin, and Pillow's names for these."""

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


class SourceError(DatasetError):
    """Raised for a source file that cannot become a sample; it goes to quarantine.

    ``reason`` is the detail of ``kind``, identical on every run.
    """

    def __init__(self, kind: FaultKind, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind: FaultKind = kind
        self.reason = reason


def read_source(
    path: bytes, bytes_max: int = FILE_BYTES_MAX, *, listed: int | None = None
) -> bytes:
    """Return the content of a regular file; SourceError (unreadable, empty or too-large).

    ``listed`` is the stamp that it must have, as ``check_listed`` compares it.
    """
    try:
        with StoredFile(path, listed) as file:
            size_bytes = file.size_bytes
            check_size(size_bytes, "the file has no bytes", bytes_max)
            return file.read(0, size_bytes)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        check_listed(path, listed)
        is_dangling = error.errno == errno.ENOENT and os.path.islink(path)
        text = "a dangling link" if is_dangling else error.strerror or type(error).__name__
        raise SourceError("unreadable", text[0].lower() + text[1:]) from None


def check_size(size_bytes: int, empty: str, bytes_max: int = FILE_BYTES_MAX) -> None:
    """Raise SourceError for an image that is too large, or without bytes: then ``empty``."""
    if not size_bytes:
        raise SourceError("empty", empty)
    if size_bytes > bytes_max:
        raise SourceError("too-large", f"{size_bytes} bytes, more than {bytes_max}")


def sniff_format(start: bytes) -> str | None:
    """Return Pillow's name for the format of a file that begins with ``start``; None: no image."""
    return next((name for pattern, name in _FORMATS if pattern.match(start)), None)


def sniff_file(path: bytes) -> str | None:
    """Return the format of the file at ``path`` as ``sniff_format`` does; None if unreadable."""
    try:
        with open_stored(path) as file:
            return sniff_format(file.read(0, SNIFF_BYTES))
    except OSError:
        return None


def describe_foreign(start: bytes) -> SourceError:
    """Return the fault of a file whose first bytes are of no format that Feeder reads."""
    what, remedy = recognise_other(start)
    if not remedy:
        return SourceError("not-image", f"starts with {start[:8].hex(' ')}")
    kind: FaultKind = "unsupported" if remedy == CONVERT else "not-image"
    return SourceError(kind, f"it is {what}: {remedy}")


def unpacked_name(name: str) -> str:
    """Return the name that a sample called ``name`` unpacks to, which has a JPEG's suffix."""
    stem, suffix = os.path.splitext(name)
    return name if suffix.lower() in JPEG_SUFFIXES else f"{stem}.jpg"
