"""File names and paths in text files, messages and other processes, independent of the locale.

Python decodes paths, which are bytes, by the locale. So paths leave a process as bytes, or as UTF-8
in which bytes that are not UTF-8 are kept, like the names in shards.
"""

import os
from pathlib import Path


def path_to_text(path: str | os.PathLike[str]) -> str:
    """A path as text that names it in every locale."""
    return decode_name(os.fsencode(path))


def path_from_text(text: str) -> Path:
    """The path of a text from ``path_to_text`` or from a UTF-8 file."""
    return path_from_bytes(encode_name(text))


def path_from_bytes(path: bytes) -> Path:
    return Path(os.fsdecode(path))


def encode_name(name: str) -> bytes:
    """Encode a file name as UTF-8, in which bytes that are not UTF-8 are kept."""
    return name.encode("utf-8", "surrogateescape")


def decode_name(data: bytes) -> str:
    """Decode the file name stored as ``data``; the inverse of encode_name for any bytes."""
    return data.decode("utf-8", "surrogateescape")


def printable(name: str) -> str:
    """Escape the characters of ``name`` that are not printable, for a one-line message."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
