"""File names and paths in text files, messages and other processes, independent of the locale.

A path is bytes to the system. Python decodes these by the locale, so text that it made of a path
means that path only in a process of the same locale. What leaves a process is bytes therefore, or
UTF-8 in which bytes that are none are kept, as the names in shards are.
"""

import os
from pathlib import Path


def path_to_text(path: str | os.PathLike[str]) -> str:
    """Return a path as text that means the same in every locale."""
    return decode_name(os.fsencode(path))


def path_from_text(text: str) -> Path:
    """Return the path that ``path_to_text`` or a file in UTF-8 names."""
    return path_from_bytes(encode_name(text))


def path_from_bytes(path: bytes) -> Path:
    """Return a path from its bytes."""
    return Path(os.fsdecode(path))


def encode_name(name: str) -> bytes:
    """Return a file name as UTF-8; bytes that are not UTF-8 stay as they are."""
    return name.encode("utf-8", "surrogateescape")


def decode_name(data: bytes) -> str:
    """Return the file name stored as ``data``; the reverse of encode_name for any bytes."""
    return data.decode("utf-8", "surrogateescape")


def printable(name: str) -> str:
    """Return a name of a file for messages: what would break the line or the encoding escaped."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
