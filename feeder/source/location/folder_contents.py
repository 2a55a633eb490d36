"""What a folder directly holds, by the names in it: class folders, images, labels, or containers.

Invariant: the result does not depend on the order in which the file system lists the folder.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from feeder.errors import DatasetError
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import read_regular
from feeder.source.label_files.columns import has_image_suffix

ContainerFormat = Literal["tar", "tfrecord", "parquet"]
CONTAINERS: Final[dict[ContainerFormat, str]] = {
    "tar": "tar files",
    "tfrecord": "TFRecord files",
    "parquet": "Parquet files",
}
_NAMES: Final[dict[ContainerFormat, re.Pattern[str]]] = {
    "tar": re.compile(r"\.(tar(\.(gz|zst))?|tgz|tzst)$", re.IGNORECASE),
    "tfrecord": re.compile(
        r"\.(tfrecords?|tfrec)(\.(gz|zst))?([-_.]\d+)*(-of-\d+)?(\.(gz|zst))?$|-\d{5}-of-\d{5}$",
        re.IGNORECASE,
    ),
    "parquet": re.compile(r"\.parquet$", re.IGNORECASE),
}
_LABELS: Final = re.compile(r"\.(csv|tsv|json|jsonl|ndjson)$", re.IGNORECASE)
_SAVED: Final = frozenset({"state.json", "dataset_dict.json"})
_DESCRIPTIONS: Final = frozenset({"dataset_info.json", "dataset_infos.json", *_SAVED})
_KEPT_MAX: Final = 16
_MANIFEST: Final = "manifest.json"
_MANIFEST_BYTES_MAX: Final = 64 << 20


@dataclass(slots=True)
class FolderContents:
    """What a folder directly holds, besides hidden entries."""

    folders: list[str] = field(default_factory=list)
    """Their names, sorted; as paths in Python."""
    containers: dict[ContainerFormat, list[str]] = field(default_factory=dict)
    """The names of files, sorted, by what they seem to hold."""
    labels: list[str] = field(default_factory=list)
    """The first few names of files that may hold labels, sorted."""
    images: int = 0
    """Files with an image's suffix."""
    others: list[str] = field(default_factory=list)
    """The first few names of other files, sorted."""
    is_packed: bool = False
    """Whether it is a dataset that Feeder packed."""
    is_saved: bool = False
    """Whether Hugging Face's ``save_to_disk`` wrote it."""


def look_at_folder(path: Path) -> FolderContents:
    """Return what a folder holds; DatasetError if it cannot be listed."""
    found = FolderContents()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    _sort_in(found, entry)
    except OSError as error:
        shown = printable(path_to_text(path))
        raise DatasetError(f"source folder {shown} cannot be listed: {error.strerror}") from None
    for names in (found.folders, *found.containers.values()):
        names.sort(key=path_to_text)
    found.labels = _first(found.labels)
    found.others = _first(found.others)
    found.is_packed = _is_manifest(path / _MANIFEST)
    return found


def is_label_name(name: str) -> bool:
    """Return whether a file is called as files of labels are."""
    return _LABELS.search(name) is not None


def _sort_in(found: FolderContents, entry: "os.DirEntry[str]") -> None:
    name = entry.name
    found.is_saved |= name in _SAVED
    if _is_folder(entry):
        found.folders.append(name)
    elif has_image_suffix(name):
        found.images += 1
    elif _LABELS.search(name):
        if name not in _DESCRIPTIONS:
            found.labels.append(name)
            _trim(found.labels)
    else:
        for container, pattern in _NAMES.items():
            if pattern.search(name):
                found.containers.setdefault(container, []).append(name)
                return
        found.others.append(name)
        _trim(found.others)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _trim(names: list[str]) -> None:
    """Keep the first names, of any number."""
    if len(names) > 64 * _KEPT_MAX:
        names[:] = _first(names)


def _first(names: list[str]) -> list[str]:
    return sorted(names, key=path_to_text)[:_KEPT_MAX]


def _is_manifest(path: Path) -> bool:
    try:
        return b'"feeder-dataset"' in read_regular(path, _MANIFEST_BYTES_MAX)
    except OSError:
        return False
