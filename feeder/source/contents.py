"""What a file is, by its first bytes, and what a folder directly holds, by the names in it.

Invariant: the result does not depend on the order in which the file system lists the folder.
"""

import math
import os
import re
from typing import Final

from feeder.errors import DatasetError, StoreError
from feeder.process.path_text import decode_name, printable
from feeder.source.kinds import MODULES, find_kind
from feeder.source.label_files.columns import has_image_suffix
from feeder.source.location.file_format import inflate_start, is_zstd, recognise_other
from feeder.source.location.storage import encode_path, is_folder, read_whole, scan_folder

_LABELS: Final = re.compile(r"\.(csv|tsv|json|jsonl|ndjson)$", re.IGNORECASE)
_SAVED: Final = frozenset({"state.json", "dataset_dict.json"})
_DESCRIPTIONS: Final = frozenset({"dataset_info.json", "dataset_infos.json", *_SAVED})
_OTHERS_MAX: Final = 16
_MANIFEST: Final = "manifest.json"
_START_BYTES: Final = 1 << 16
_MANIFEST_BYTES_MAX: Final = 64 << 20


class FolderContents:
    """What a folder directly holds, besides hidden entries; names are sorted, as text of UTF-8."""

    def __init__(self, path: str, *, images_max: float = math.inf) -> None:
        """Look no further after ``images_max`` images; DatasetError if it cannot be listed."""
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
        self.is_packed = False
        """Whether it is a dataset that Feeder packed."""
        kinds = [kind for name in MODULES if (kind := find_kind(name)).what]
        for entry in scan_folder(encode_path(path), "source folder"):
            name = decode_name(entry.name)
            if name.startswith("."):
                continue
            if self.images >= images_max:
                break
            self.is_packed |= name == _MANIFEST and _is_packed(os.path.join(path, name))
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
            names.sort()
        del self.others[_OTHERS_MAX:]

    def describe(self) -> str:
        """Return folders, images and containers, counted, for a message."""
        counts = {plural: len(names) for plural, names in self.containers.items()}
        counts |= {"folders": len(self.folders), "images": self.images}
        return " and ".join(
            f"{count:,} {what if count > 1 else what.removesuffix('s')}"
            for what, count in sorted(counts.items())
            if count
        )


def recognise_file(path: str) -> tuple[str, str, str]:
    """Return the kind of source that a file is by its first bytes, what it is called, and a remedy.

    The kind is "" where it is none, the remedy where none is known. Raises DatasetError for a file
    that cannot be read.
    """
    start, file_name = read_whole(path, _START_BYTES), os.path.basename(path)
    content = inflate_start(start)
    for name in reversed(MODULES):
        kind = find_kind(name)
        if kind.matches is not None and kind.matches(content, file_name):
            return name, kind.what, ""
    if is_zstd(start):  # by its name, as the library may be missing
        for name in MODULES:
            if (kind := find_kind(name)).has_name(file_name):
                return name, kind.what, ""
    what, remedy = recognise_other(start, file_name)
    return "", what, remedy


def describe_file(path: str) -> str:
    """Return what the file at ``path`` is and what to do about it: "is a QOI image: convert it"."""
    try:
        _, what, remedy = recognise_file(path)
    except StoreError:
        raise
    except DatasetError as error:
        return str(error).removeprefix(f"{printable(path)} ")
    return f"is {what}: {remedy}" if remedy else f"is {what}"


def is_label_name(name: str) -> bool:
    """Return whether a file is called as files of labels are."""
    return _LABELS.search(name) is not None


def _is_packed(manifest: str) -> bool:
    try:
        return b'"feeder-dataset"' in read_whole(manifest, _MANIFEST_BYTES_MAX)
    except StoreError:
        raise
    except DatasetError:
        return False
