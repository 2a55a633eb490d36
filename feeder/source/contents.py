"""What a file is, by its first bytes, and what a folder directly holds, by the names in it.

Invariant: the result does not depend on the order in which the file system lists the folder.
"""

import os
import re
from pathlib import Path
from typing import Final

from feeder.errors import DatasetError
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import read_regular
from feeder.source.kinds import MODULES, find_kind
from feeder.source.label_files.columns import has_image_suffix
from feeder.source.location.file_format import inflate_start, is_zstd, recognise_other
from feeder.source.location.storage import is_folder, read_whole, scan_folder

_LABELS: Final = re.compile(r"\.(csv|tsv|json|jsonl|ndjson)$", re.IGNORECASE)
_SAVED: Final = frozenset({"state.json", "dataset_dict.json"})
_DESCRIPTIONS: Final = frozenset({"dataset_info.json", "dataset_infos.json", *_SAVED})
_OTHERS_MAX: Final = 16
_MANIFEST: Final = "manifest.json"
_START_BYTES: Final = 1 << 16
_MANIFEST_BYTES_MAX: Final = 64 << 20


class FolderContents:
    """What a folder directly holds, besides hidden entries; names are sorted, as paths in Python.

    DatasetError if it cannot be listed.
    """

    def __init__(self, path: Path) -> None:
        self.folders: list[str] = []
        self.containers: dict[str, list[str]] = {}
        """Files by what they seem to be: "tar files"."""
        self.labels: list[str] = []
        """Files that may hold labels."""
        self.images = 0
        """Files with an image's suffix, which may be millions."""
        self.others: list[str] = []
        """The first few other files."""
        self.is_saved = False
        """Whether Hugging Face's ``save_to_disk`` wrote it."""
        kinds = [kind for name in MODULES if (kind := find_kind(name)).what]
        for entry in scan_folder(os.fsencode(path), "source folder"):
            name = os.fsdecode(entry.name)
            if name.startswith("."):
                continue
            self.is_saved |= name in _SAVED
            if is_folder(entry):
                self.folders.append(name)
            elif has_image_suffix(name):
                self.images += 1
            elif is_label_name(name):
                if name not in _DESCRIPTIONS:
                    self.labels.append(name)
            elif plural := next((kind.plural for kind in kinds if kind.has_name(name)), ""):
                self.containers.setdefault(plural, []).append(name)
            else:
                self.others.append(name)
        for names in (self.folders, self.labels, self.others, *self.containers.values()):
            names.sort(key=path_to_text)
        del self.others[_OTHERS_MAX:]
        self.is_packed = _is_packed(path)
        """Whether it is a dataset that Feeder packed."""

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


def is_label_name(name: str) -> bool:
    """Return whether a file is called as files of labels are."""
    return _LABELS.search(name) is not None


def _is_packed(folder: Path) -> bool:
    try:
        return b'"feeder-dataset"' in read_regular(folder / _MANIFEST, _MANIFEST_BYTES_MAX)
    except OSError:
        return False
