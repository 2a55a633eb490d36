"""What a file is, by its first bytes, and what a folder directly holds, by the names in it.

Invariant: the result does not depend on the order in which the file system lists the folder.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from feeder.errors import DatasetError
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import read_regular
from feeder.source.kinds import MODULES, find_kind
from feeder.source.label_files.columns import has_image_suffix
from feeder.source.location.file_format import (
    inflate_start,
    is_zstd,
    recognise_other,
)
from feeder.source.location.storage import is_folder, read_whole, scan_folder

_LABELS: Final = re.compile(r"\.(csv|tsv|json|jsonl|ndjson)$", re.IGNORECASE)
_SAVED: Final = frozenset({"state.json", "dataset_dict.json"})
_DESCRIPTIONS: Final = frozenset({"dataset_info.json", "dataset_infos.json", *_SAVED})
_OTHERS_MAX: Final = 16
_MANIFEST: Final = "manifest.json"
_START_BYTES: Final = 1 << 16
_MANIFEST_BYTES_MAX: Final = 64 << 20


@dataclass(slots=True)
class FolderContents:
    """What a folder directly holds, besides hidden entries."""

    folders: list[str] = field(default_factory=list)
    """Their names, sorted; as paths in Python."""
    containers: dict[str, list[str]] = field(default_factory=dict)
    """The names of files, sorted, by what they seem to be: "tar files"."""
    labels: list[str] = field(default_factory=list)
    """The names of files that may hold labels, sorted."""
    images: int = 0
    """Files with an image's suffix."""
    others: list[str] = field(default_factory=list)
    """The first few names of other files, sorted."""
    is_packed: bool = False
    """Whether it is a dataset that Feeder packed."""
    is_saved: bool = False
    """Whether Hugging Face's ``save_to_disk`` wrote it."""

    def describe(self) -> str:
        """Return folders, images and containers, counted, for a message."""
        counts = {plural: len(names) for plural, names in self.containers.items()}
        counts |= {"folders": len(self.folders), "images": self.images}
        return " and ".join(
            f"{count:,} {what if count > 1 else what.removesuffix('s')}"
            for what, count in sorted(counts.items())
            if count
        )


def recognise_file(path: Path) -> tuple[str, str, str]:
    """Return the kind of source that a file is by its first bytes, what it is called, and a remedy.

    The kind is "" where it is none, the remedy where none is known. Raises DatasetError for a file
    that cannot be read.
    """
    start = read_whole(path, _START_BYTES)
    content = inflate_start(start)
    for name in reversed(MODULES):
        kind = find_kind(name)
        if kind.matches is not None and kind.matches(content, path.name):
            return name, kind.what, ""
    if is_zstd(start):  # by its name, as the library may be missing
        for name in MODULES:
            if (kind := find_kind(name)).has_name(path.name):
                return name, kind.what, ""
    what, remedy = recognise_other(start, path.name)
    return "", what, remedy


def describe_file(path: Path) -> str:
    """Return what the file at ``path`` is and what to do about it: "is a QOI image: convert it"."""
    try:
        _, what, remedy = recognise_file(path)
    except DatasetError as error:
        return str(error).removeprefix(f"{printable(path_to_text(path))} ")
    return f"is {what}: {remedy}" if remedy else f"is {what}"


def look_at_folder(path: Path) -> FolderContents:
    """Return what a folder holds; DatasetError if it cannot be listed."""
    contents = FolderContents()
    kinds = [kind for name in MODULES if (kind := find_kind(name)).what]
    for entry in scan_folder(os.fsencode(path), "source folder"):
        name = os.fsdecode(entry.name)
        if name.startswith("."):
            continue
        contents.is_saved |= name in _SAVED
        if is_folder(entry):
            contents.folders.append(name)
        elif has_image_suffix(name):
            contents.images += 1
        elif is_label_name(name):
            if name not in _DESCRIPTIONS:
                contents.labels.append(name)
        elif plural := next((kind.plural for kind in kinds if kind.has_name(name)), ""):
            contents.containers.setdefault(plural, []).append(name)
        else:
            contents.others.append(name)
    lists = (contents.folders, contents.labels, contents.others, *contents.containers.values())
    for names in lists:
        names.sort(key=path_to_text)
    del contents.others[_OTHERS_MAX:]
    try:
        manifest = read_regular(path / _MANIFEST, _MANIFEST_BYTES_MAX)
        contents.is_packed = b'"feeder-dataset"' in manifest
    except OSError:
        pass
    return contents


def is_label_name(name: str) -> bool:
    """Return whether a file is called as files of labels are."""
    return _LABELS.search(name) is not None
