"""Chooses the path below OUT that each sample is unpacked to, shortened where necessary.

Where samples have one class each, the path begins with the class, also if the name, of another
source than a folder of classes, does not.

A name within the file system's limits changes at most its suffix. Others are shortened:

    a component longer than NAME_MAX     its beginning ~ hash of the component . suffix
    a path longer than PATH_MAX          its first folder / beginning of the rest ~ hash . suffix
    a component that looks shortened     like one that is too long

The last rule makes the mapping one-to-one, apart from collisions of 128-bit hashes: an unchanged
component never equals a shortened one. So workers choose names independently, and every run gives
the same names on file systems of the same limits.
"""

import contextlib
import hashlib
import os
import re
from typing import Final

from feeder.errors import DatasetError
from feeder.process.path_text import decode_name, encode_name
from feeder.source.item_bytes import unpacked_name

_HASH_BYTES: Final = 16
_SHORTENED: Final = re.compile(rb"~[0-9a-f]{32}(\.[^./]*)?\Z")
_SUFFIX_BYTES_MAX: Final = 16  # longer text after the last dot is no suffix

NameLimits = tuple[int, int]
"""Most bytes of a file or folder name, and of a path relative to the folder."""


def find_limits(folder: bytes) -> NameLimits:
    """Return the limits below an absolute, existing folder; OSError if that fails."""
    path_bytes = os.pathconf(folder, "PC_PATH_MAX") - 1  # the terminating zero byte
    return os.pathconf(folder, "PC_NAME_MAX"), path_bytes - len(folder) - 1


def choose_name(
    stored: bytes, limits: NameLimits, where: str, class_name: str | None = None
) -> tuple[bytes, bool]:
    """Choose the path below OUT of a sample, by its name in the shard; and whether it is shortened.

    ``class_name`` is the sample's class where it has one: the path begins with it. Raises
    DatasetError, which names ``where``, if the path would leave OUT or the class folder.
    """
    name = decode_name(stored)
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in name:
        raise DatasetError(f"{where} holds a sample with the invalid name {name!r}: not unpacked")
    if class_name is not None and (len(parts) < 2 or parts[0] != class_name):
        name = f"{class_folder(class_name)}/{name}"
    wanted = encode_name(unpacked_name(name))
    name_bytes_max, path_bytes_max = limits
    components = wanted.split(b"/")
    fitting = [
        component
        if len(component) <= name_bytes_max and not _SHORTENED.search(component)
        else _shorten(component, component, name_bytes_max)
        for component in components
    ]
    if len(b"/".join(fitting)) > path_bytes_max:
        rest = components[1:]
        fitting[1:] = [_shorten(b" ".join(rest), b"/".join(rest), name_bytes_max)] if rest else []
    path = b"/".join(fitting)
    return path, path != wanted


def class_folder(class_name: str) -> str:
    """Return the folder of a class that no folder named: other names for other classes.

    What a folder's name cannot hold is escaped as in URLs, and a dot at its beginning, because
    packing leaves out such folders.
    """
    escaped = class_name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return "%2E" + escaped[1:] if escaped.startswith(".") else escaped or "%"


def _shorten(text: bytes, hashed: bytes, bytes_max: int) -> bytes:
    """Return as much of ``text`` as fits, the hash of ``hashed``, and the suffix."""
    stem, suffix = os.path.splitext(text)
    if len(suffix) > _SUFFIX_BYTES_MAX:
        stem, suffix = text, b""
    digest = hashlib.blake2b(hashed, digest_size=_HASH_BYTES).hexdigest().encode()
    end = b"~" + digest + suffix
    beginning = stem[: max(0, bytes_max - len(end))]
    with contextlib.suppress(UnicodeDecodeError):  # names may be no UTF-8
        stem.decode()
        beginning = beginning.decode(errors="ignore").encode()  # without a partial character
    return beginning + end
