"""Recognises what kind of source a location is, by looking into it; --source names it instead.

    a folder with folders in it             class-folder
    a folder of images with one CSV, …      labelled-folder; so is any with --labels
    files, or a folder of files             by their first bytes: webdataset, tfrecord, parquet,
                                            lmdb, imagenet-train, imagenet-val

Where more than one kind is possible none is guessed: an error names what was seen. It does not
depend on the order in which a file system lists a folder.
"""

import itertools
import os
import re
from array import array
from collections.abc import Sequence
from os.path import join
from typing import Any, Final

from msgspec.structs import replace

from feeder.errors import ConfigError, DatasetError, StoreError
from feeder.process.path_text import encode_name, path_from_text, printable
from feeder.source.contents import FolderContents, describe_file, is_label_name, recognise_file
from feeder.source.item_bytes import sniff_file
from feeder.source.kinds import MODULES, find_kind
from feeder.source.label_files.label_file import LabelFile
from feeder.source.label_files.names import NameFinder, NameKeys
from feeder.source.location.find import find_file, find_files
from feeder.source.location.split_choice import SplitChoice
from feeder.source.location.splits import is_split, split_of
from feeder.source.location.storage import is_folder_path, is_url
from feeder.source.source import SourceSpec

_LOOKED_AT_MAX: Final = 32  # files; of more, the first of each form of name
_SHOWN_MAX: Final = 4
_ROWS_TRIED: Final = 16
_FOLDERS_TRIED: Final = 2
_CHOOSE: Final = "give the files by a pattern such as DIR/*.tar, a folder in it, or --source KIND"


def recognise(
    location: str,
    *,
    kind: str | None = None,
    labels_file: str = "",
    class_names_file: str = "",
    **choices: Any,
) -> SourceSpec:
    """Return the description of the source at ``location``, as the user typed it.

    ``kind`` forces one of ``kinds.MODULES``; ``choices`` are other fields of the description.
    Raises ConfigError for what is no source, may be several kinds of one or has several splits
    without a choice; DatasetError for what does not exist or cannot be read, StoreError.
    """
    if kind is not None and kind not in MODULES:
        raise ConfigError(f"--source {printable(kind)}: must be {', '.join(MODULES)}")
    paths = find_files(location)
    spec = SourceSpec(
        kind=kind or "",  # which is looked for below
        location=location,
        containers=paths,
        labels_file=labels_file and find_file(labels_file, "--labels", may_be_folder=True),
        class_names_file=class_names_file and find_file(class_names_file, "--class-names"),
        **choices,
    )
    if is_folder_path(paths[0]):
        return _recognise_folder(spec, paths[0])
    if any(not is_url(path) and path_from_text(path).is_fifo() for path in paths):
        kinds = [name for name in MODULES if find_kind(name).is_streamable]
        if kind not in kinds:
            raise ConfigError(
                f"{printable(location)} is a pipe, which is not looked at first: say what it is "
                f"with --source {' or '.join(kinds)}; other kinds are files"
            )
    return _recognise_files(spec, paths)


def _recognise_folder(spec: SourceSpec, folder: str) -> SourceSpec:
    contents = FolderContents(folder)
    shown = printable(folder)
    if contents.is_packed:
        raise ConfigError(f"{shown} is a packed dataset already: give it to feeder serve")
    if contents.is_saved and not contents.images and not contents.containers:
        raise DatasetError(
            f"{shown} is what save_to_disk of Hugging Face's datasets wrote: load it in Python "
            "with load_from_disk, and write Parquet (docs/sources.md says how) or call "
            "feeder.pack_samples"
        )
    kind = spec.kind or _find_folder_kind(spec, folder, contents)
    if kind == "labelled-folder" and spec.label_kind != "none":
        labels_file = spec.labels_file or _find_labels_file(folder, contents)
        return replace(spec, kind=kind, labels_file=labels_file)  # its rows may have splits
    if kind in ("class-folder", "labelled-folder"):
        return _choose_folder(spec, kind, folder, contents)
    names = [name for names in contents.containers.values() for name in names]
    if kind:
        plural = find_kind(kind).plural
        names = contents.containers.get(plural, [])
        if not names:
            raise ConfigError(
                f"{shown} holds no {plural} by their names: give them by a pattern, such as "
                f"{shown}/*"
            )
    return _recognise_files(spec, sorted(join(folder, name) for name in names))


def _find_folder_kind(spec: SourceSpec, folder: str, contents: FolderContents) -> str:
    """Return whether a folder is a class-folder or a labelled-folder; "" if it has containers."""
    others = (encode_name(join(folder, name)) for name in contents.others)
    has_images = contents.images > 0 or any(map(sniff_file, others))
    if contents.containers:
        if has_images or contents.folders:
            raise ConfigError(f"{printable(folder)} holds {contents.describe()}: {_CHOOSE}")
        return ""
    needs_labels = not contents.folders or bool(contents.labels) or spec.label_kind == "none"
    if (
        spec.labels_file
        or (has_images and needs_labels)
        or (len(contents.labels) == 1 and _lists_files(spec, folder, contents.labels[0]))
    ):
        return "labelled-folder"
    if contents.others and not contents.folders:
        other = contents.others[0]
        what = describe_file(join(folder, other))
        raise DatasetError(f"{printable(folder)} holds no images; {printable(other)} {what}")
    return "class-folder"


def _find_labels_file(folder: str, contents: FolderContents) -> str:
    """Return the one file in a folder of images that may have their labels."""
    if not contents.labels:
        raise ConfigError(
            f"{printable(folder)} holds images without labels: name the file that has them with "
            "--labels, put the images into a folder per class, or give --label-kind none"
        )
    if len(contents.labels) > 1:
        shown = ", ".join(map(printable, contents.labels[:_SHOWN_MAX]))
        more = len(contents.labels) - _SHOWN_MAX
        raise ConfigError(
            f"{printable(folder)} holds {shown}{f' and {more:,} more' * (more > 0)}: choose the "
            "file that has the labels with --labels"
        )
    return join(folder, contents.labels[0])


def _lists_files(spec: SourceSpec, folder: str, name: str) -> bool:
    """Return whether one of the first rows of a file in a folder lists a file below it."""
    try:
        rows = LabelFile(
            join(folder, name), image=spec.image, label=spec.label, label_kind=spec.label_kind
        ).rows()
        names = NameFinder(folder, folder, NameKeys(array("Q")))
        return any(names.find(row.file) for row in itertools.islice(rows, _ROWS_TRIED))
    except StoreError:
        raise
    except (ConfigError, DatasetError):
        return False  # it is no file of labels


def _choose_folder(
    spec: SourceSpec, kind: str, folder: str, contents: FolderContents
) -> SourceSpec:
    """Return the spec of a folder of loose images, or of the split in it that was chosen.

    Raises ConfigError for folders that are splits, or hold containers instead of images.
    """
    names = contents.folders
    split: str | None
    if not spec.split and not spec.all_splits and _is_test_set(folder, names):
        split = names[0]
        inside = printable(join(folder, split))
        note = f"the classes are the folders in {inside}, the only one there"
    else:
        split, note = _choice(spec).choose_folder(folder, names)
    spec = _add_note(spec, note)
    if split is not None:
        path = join(folder, split) + "/" * is_url(folder)
        spec = replace(spec, location=path, containers=(path,), split="")
        return _recognise_folder(spec, path)
    for path in [join(folder, name) for name in names[:_FOLDERS_TRIED] if kind == "class-folder"]:
        below = FolderContents(path, images_max=1)
        if below.containers and not below.images and not below.folders:
            raise ConfigError(
                f"{printable(folder)} holds no images, and {printable(path)} has "
                f"{below.describe()}: give one such folder"
            )
    return replace(spec, kind=kind)


def _is_test_set(folder: str, names: list[str]) -> bool:
    """Return whether a folder holds a test set alone, with its classes, as many archives do.

    A training set alone is asked about: then something else is missing.
    """
    if len(names) != 1 or split_of(names[0]) != "test" or not is_split(names[0]):
        return False
    inside = FolderContents(join(folder, names[0]), images_max=1)
    return bool(inside.folders) and not (inside.images or inside.containers)


def _recognise_files(spec: SourceSpec, paths: Sequence[str]) -> SourceSpec:
    """Return the spec of files, or of those of the split that was chosen, or of its rows."""
    choice = _choice(spec)
    files, note = choice.choose_files(paths)
    spec = _add_note(replace(spec, containers=files or tuple(paths), split=""), note)
    if not spec.kind:
        spec = replace(spec, kind=_find_file_kind(spec.containers))
    if spec.is_loose:  # which refuses files
        return spec
    count_splits = find_kind(spec.kind).count_splits
    column, counts = ("", {}) if count_splits is None else count_splits(spec)
    if column:
        if files and len(counts) == 1:  # all rows of the files that were chosen
            choice = choice._replace(split="")
        where = f"{printable(spec.location)}, by its column {printable(column)},"
        split, note = choice.choose_rows(counts, where)
        return _add_note(replace(spec, split=split or ""), note)
    if choice.split and not files:
        by_column = "neither its files nor a column split say so"
        raise choice.no_splits(by_column if count_splits else "none of its files is called so")
    return spec


def _find_file_kind(paths: Sequence[str]) -> str:
    """Return the kind of source that all files are."""
    if len(paths) > _LOOKED_AT_MAX:  # the first of each form that their names have
        names = {re.sub(r"\d+", "0", os.path.basename(path)): path for path in reversed(paths)}
        paths = sorted(names.values())
    seen: dict[str, str] = {}
    for path in paths:
        kind, what, remedy = recognise_file(path)
        if not kind:
            raise DatasetError(_describe_unknown(path, what, remedy))
        seen.setdefault(kind, f"{printable(os.path.basename(path))} is {what}")
    if len(seen) > 1:
        raise ConfigError(
            f"{', '.join(seen.values())}: give files of one kind, or name it with --source"
        )
    return next(iter(seen))


def _describe_unknown(path: str, what: str, remedy: str) -> str:
    shown = printable(path)
    if sniff_file(encode_name(path)) is not None:
        return f"{shown} is one image: give the folder that holds the images"
    if is_label_name(path):
        return (
            f"{shown} is a file of labels: give the folder that holds the images, and name the "
            "file with --labels"
        )
    plurals = dict.fromkeys(plural for name in MODULES if (plural := find_kind(name).plural))
    *others, last = (plural.removesuffix(" files") for plural in plurals)
    return (
        f"{shown} is a file: give a folder of images, or {', '.join(others)} or {last} files; it "
        f"is {what}{remedy and ': '}{remedy}"
    )


def _choice(spec: SourceSpec) -> SplitChoice:
    return SplitChoice(spec.split, spec.all_splits, printable(spec.location))


def _add_note(spec: SourceSpec, note: str) -> SourceSpec:
    return replace(spec, notes=(*spec.notes, note)) if note else spec
