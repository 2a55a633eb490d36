"""Names of items: the file that one is read from, and the one that it unpacks to."""

import os

from feeder.source.item_bytes import JPEG_SUFFIXES


def unpacked_name(name: str) -> str:
    """Return the name that a sample called ``name`` unpacks to, which has a JPEG's suffix."""
    stem, suffix = os.path.splitext(name)
    return name if suffix.lower() in JPEG_SUFFIXES else f"{stem}.jpg"


def stored_path(folder: bytes, stored_name: bytes) -> bytes:
    """Return the path of the file that is stored as ``stored_name`` below ``folder``."""
    return os.path.join(folder, stored_name)
