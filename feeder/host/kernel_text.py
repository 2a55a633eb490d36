"""Reads small kernel files that the daemon depends on: absent is empty, malformed an error."""

import re
from pathlib import Path
from typing import Final

from feeder.errors import ResourceError
from feeder.process.regular_file import read_regular

_COUNT: Final = re.compile(r"-1|[0-9]{1,18}")
"""What the kernel writes where it counts; -1 is "no limit"."""

_BYTES_MAX: Final = 16 << 20
"""mountinfo of a host with many thousand containers is that large."""


def read_text(path: Path) -> str:
    """Return a file's text, stripped; "" where it is absent or not readable."""
    try:
        data = read_regular(path, _BYTES_MAX)
    except (OSError, ValueError):  # a ValueError: the path holds a zero byte
        return ""
    return data.decode("utf-8", "surrogateescape").strip()


def to_count(text: str, path: Path, *, least: int) -> int:
    """Return the number in a file; ResourceError if it is not one or below ``least``."""
    if not _COUNT.fullmatch(text) or int(text) < least:
        shown = text if len(text) <= 40 else f"{text[:40]}…"
        raise malformed(path, f"{shown!r} is not a count")
    return int(text)


def malformed(path: Path, what: str) -> ResourceError:
    """Return the error for a file that cannot be parsed."""
    return ResourceError(f"{path} cannot be parsed: {what}")
