"""Which version of libjpeg-turbo this process has loaded.

libjpeg has no function that returns its version. The headers have the version compiled with, and
Pillow reports the one that Pillow was compiled with, possibly a bundled copy. But each build of
libjpeg-turbo contains a text such as "libjpeg-turbo version 2.1.5 (build 20230203)", which is found
by searching the memory of the shared object that one of its functions is in.
"""

import ctypes
import functools
import re
from pathlib import Path
from typing import Final

_VERSION: Final = re.compile(rb"libjpeg-turbo version ([0-9][0-9a-z.]*)")
_MAPS: Final = Path("/proc/self/maps")


@functools.cache
def jpeg_turbo_version() -> str:
    """Return the version that decodes and packs, or both where TurboJPEG contains another one."""
    from feeder.jpeg import _native

    by_headers = f"{_native.LIBJPEG_TURBO_VERSION} by its headers"
    packing = version_at(_native.LIBJPEG_ADDRESS) or by_headers
    decoding = version_at(_native.TURBOJPEG_ADDRESS) or by_headers
    return packing if packing == decoding else f"{decoding} decoding, {packing} packing"


@functools.cache
def pillow_jpeg_turbo_version() -> str | None:
    """Return the version that Pillow runs; None if unknown."""
    from PIL import _imaging

    try:
        function = ctypes.CDLL(_imaging.__file__).jpeg_CreateDecompress
    except (OSError, AttributeError):  # linked into Pillow without symbols
        return None
    return version_at(ctypes.cast(function, ctypes.c_void_p).value or 0)


def version_at(address: int, maps: Path = _MAPS) -> str | None:
    """Return the version of the libjpeg-turbo whose code is at ``address``, or None."""
    try:
        mappings = [_Mapping(line) for line in maps.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return None
    owner = next((each.file for each in mappings if each.start <= address < each.end), None)
    if owner is None:
        return None
    for each in mappings:
        if each.file == owner and each.is_readable:
            found = _VERSION.search(ctypes.string_at(each.start, each.end - each.start))
            if found:
                return found[1].decode()
    return None


class _Mapping:
    """A line of /proc/self/maps; ``file`` is device, inode and path."""

    __slots__ = ("end", "file", "is_readable", "start")

    def __init__(self, line: str) -> None:
        extent, permissions, _, *file = line.split(maxsplit=5)
        self.start, self.end = (int(bound, 16) for bound in extent.split("-"))
        self.is_readable = permissions.startswith("r")
        self.file = tuple(file) if len(file) == 3 else None
