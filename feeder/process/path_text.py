"""Paths between processes and files of text, whatever the locale of whoever reads them.

A path is bytes to the system. Python decodes these by the locale, so text that it made of a path
means that path only in a process of the same locale. What leaves a process is bytes therefore, or
UTF-8 in which bytes that are none are kept, as the names in shards are.
"""

import os
from pathlib import Path

from feeder.dataset.format import decode_name, encode_name


def path_to_text(path: str | os.PathLike[str]) -> str:
    """Return a path as text that means the same in every locale."""
    return decode_name(os.fsencode(path))


def path_from_text(text: str) -> Path:
    """Return the path that ``path_to_text`` or a file in UTF-8 names."""
    return path_from_bytes(encode_name(text))


def path_from_bytes(path: bytes) -> Path:
    """Return a path from its bytes."""
    return Path(os.fsdecode(path))
