"""Names of items: the file that one is read from, and the one that it unpacks to."""

import functools
import os
import re
from typing import Final

from feeder.source.item_bytes import JPEG_SUFFIXES
from feeder.source.source import SourceSpec

_CONTAINER_SUFFIXES: Final = re.compile(
    r"(\.(tar|tgz|tzst|tfrecords?|tfrec|records?|parquet|gz|gzip|zst|zlib))+$", re.IGNORECASE
)


def unpacked_name(name: str) -> str:
    """Return the name that a sample called ``name`` unpacks to, which has a JPEG's suffix."""
    stem, suffix = os.path.splitext(name)
    return name if suffix.lower() in JPEG_SUFFIXES else f"{stem}.jpg"


def stored_path(folder: bytes, stored_name: bytes) -> bytes:
    """Return the path of the file that is stored as ``stored_name`` below ``folder``."""
    return os.path.join(folder, stored_name)


def container_prefix(spec: SourceSpec, container: int) -> str:
    """Return what the names of a container's items begin with: "" for an only one, else "STEM/".

    The stem is the file's name without the suffixes of its format. Where containers in several
    folders share it, all have the path from their common folder instead.
    """
    if len(spec.containers) == 1:
        return ""
    return f"{_stems(spec.containers)[container]}/"


@functools.lru_cache(maxsize=2)
def _stems(containers: tuple[str, ...]) -> tuple[str, ...]:
    folder = os.path.commonpath([os.path.dirname(path) for path in containers])
    relative = [os.path.relpath(path, folder) for path in containers]
    for names in ([os.path.basename(path) for path in containers], relative):
        stems = tuple(_CONTAINER_SUFFIXES.sub("", name) or name for name in names)
        if len(set(stems)) == len(stems):
            return stems
    return tuple(relative)
