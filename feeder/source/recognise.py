"""Recognises what kind of source a location is, by looking into it; --source names it instead.

    a folder with folders in it             class-folder
    a folder of images with one CSV, …      labelled-folder; so is any with --labels
    files, or a folder of files             by their first bytes: webdataset, tfrecord, parquet,
                                            imagenet-train, imagenet-val

Where more than one kind is possible none is guessed: an error names what was seen. It does not
depend on the order in which a file system lists a folder.
"""

import itertools
import os
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, cast

from msgspec.structs import replace

from feeder.errors import ConfigError, DatasetError
from feeder.plan.labels import LabelChoice, Uncertain
from feeder.process.path_text import encode_name, path_from_text, path_to_text, printable
from feeder.source.item_bytes import sniff_file
from feeder.source.label_files.label_file import open_label_file
from feeder.source.label_files.name_finder import NameFinder
from feeder.source.label_files.row_table import NameKeys
from feeder.source.location.file_format import FileFormat, FormatName, describe_file, look_at_file
from feeder.source.location.find import find_file, find_files
from feeder.source.location.folder_contents import (
    CONTAINERS,
    ContainerFormat,
    FolderContents,
    is_label_name,
    look_at_folder,
)
from feeder.source.location.split_choice import SplitChoice
from feeder.source.location.splits import is_split, split_of
from feeder.source.source import KINDS, LOOSE_KINDS, SourceKind, SourceSpec

CHOOSABLE: Final = tuple(kind for kind in KINDS if kind != "samples")
_KIND_OF_FORMAT: Final[dict[FormatName, SourceKind]] = {
    "tar": "webdataset",
    "tfrecord": "tfrecord",
    "parquet": "parquet",
    "imagenet-train": "imagenet-train",
    "imagenet-val": "imagenet-val",
}
_FORMAT_OF_KIND: Final[dict[SourceKind, ContainerFormat]] = {
    "webdataset": "tar",
    "tfrecord": "tfrecord",
    "parquet": "parquet",
    "imagenet-train": "tar",
    "imagenet-val": "tar",
}
_STREAM_KINDS: Final = ("webdataset", "tfrecord")
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
    image: str = "",
    label: str = "",
    label_kind: LabelChoice | None = None,
    uncertain: Uncertain | Literal[""] = "",
    label_base: int | None = None,
    class_names_file: str = "",
    split: str = "",
    all_splits: bool = False,
) -> SourceSpec:
    """Return the description of the source at ``location``, as the user typed it.

    ``kind`` forces one of CHOOSABLE; ``split`` names one of the splits that the source has, and
    ``all_splits`` takes them as one. Raises ConfigError for what is no source, may be several kinds
    of one, has several splits without a choice, or does not fit the options; DatasetError for what
    does not exist or cannot be read.
    """
    if kind is not None and kind not in CHOOSABLE:
        raise ConfigError(f"--source {printable(kind)}: must be {', '.join(CHOOSABLE)}")
    found = find_files(location)
    spec = SourceSpec(
        kind=cast(SourceKind, kind or "class-folder"),
        location=location,
        containers=found,
        image=image,
        label=label,
        label_kind=label_kind,
        uncertain=uncertain,
        label_base=label_base,
        labels_file=labels_file and find_file(labels_file, "--labels", may_be_folder=True),
        class_names_file=class_names_file and find_file(class_names_file, "--class-names"),
        split=split,
        all_splits=all_splits,
    )
    folder = path_from_text(found[0])
    if folder.is_dir():
        spec = _recognise_folder(spec, folder, is_forced=kind is not None)
    elif any(path_from_text(each).is_fifo() for each in found):
        _check_stream(spec, kind)
    else:
        spec = _choose_files(spec, found)
        spec = spec if kind is not None else replace(spec, kind=_recognise_files(spec.containers))
    _check_options(spec)
    return _choose_rows(spec, split) if spec.kind == "parquet" else spec


def _choose_rows(spec: SourceSpec, wanted: str) -> SourceSpec:
    """Return the spec of Parquet files with the split to pack.

    The split that is ``wanted`` may have chosen the files already.
    """
    try:
        from feeder.source.parquet_rows import count_splits
    except ModuleNotFoundError:  # of pyarrow, which listing reports
        return spec
    column, counts = count_splits(spec)
    if column:
        where = f"{printable(spec.location)}, by its column {printable(column)},"
        choice = _choice(spec)
        if len(counts) > 1:
            choice = choice._replace(split=wanted)
        split, note = choice.choose_rows(counts, where)
        return replace(spec, split=split or "", notes=(*spec.notes, note))
    if spec.split:
        raise _choice(spec).no_splits("neither its files nor a column split say so")
    return spec


def _check_stream(spec: SourceSpec, kind: str | None) -> None:
    """Raise ConfigError unless a pipe is said to be of a kind that is read once, from its start."""
    if kind not in _STREAM_KINDS:
        raise ConfigError(
            f"{printable(spec.location)} is a pipe, which is not looked at first: say what it is "
            f"with --source {' or '.join(_STREAM_KINDS)}; other kinds are files"
        )


def _recognise_folder(spec: SourceSpec, folder: Path, *, is_forced: bool) -> SourceSpec:
    contents = look_at_folder(folder)
    shown = _show(folder)
    if contents.is_packed:
        raise ConfigError(f"{shown} is a packed dataset already: give it to feeder serve")
    if contents.is_saved and not contents.images and not contents.containers:
        raise DatasetError(
            f"{shown} is what save_to_disk of Hugging Face's datasets wrote: load it in Python "
            "with load_from_disk, and write Parquet (docs/sources.md says how) or call "
            "feeder.pack_samples"
        )
    if is_forced and spec.kind == "class-folder":
        return _choose_class_folder(spec, folder, contents.folders, is_forced=True)
    if is_forced and spec.kind == "labelled-folder":
        return _find_labels(spec, folder, contents, is_forced=is_forced)
    if is_forced:
        container = _FORMAT_OF_KIND[spec.kind]
        names = contents.containers.get(container, [])
        if not names:
            raise ConfigError(
                f"{shown} holds no {CONTAINERS[container]} by their names: give them by a pattern, "
                f"such as {shown}/*"
            )
        return _choose_files(spec, _join(folder, names))
    has_images = contents.images > 0 or _hold_images(folder, contents.others)
    if contents.containers and (has_images or contents.folders):
        raise ConfigError(f"{shown} holds {_describe(contents)}: {_CHOOSE}")
    if contents.containers:
        names = [name for names in contents.containers.values() for name in names]
        spec = _choose_files(spec, _join(folder, names))
        return replace(spec, kind=_recognise_files(spec.containers))
    if spec.labels_file or (has_images and not contents.folders):
        return _find_labels(spec, folder, contents, is_forced=is_forced)
    if has_images and (contents.labels or spec.label_kind == "none"):
        return _find_labels(spec, folder, contents, is_forced=is_forced)
    if len(contents.labels) == 1 and _lists_files(spec, folder / contents.labels[0], folder):
        return _find_labels(spec, folder, contents, is_forced=is_forced)
    if contents.others and not contents.folders:
        what = describe_file(folder / contents.others[0])
        raise DatasetError(f"{shown} holds no images; {_show(Path(contents.others[0]))} {what}")
    return _choose_class_folder(spec, folder, contents.folders, is_forced=False)


def _recognise_files(paths: Sequence[str]) -> SourceKind:
    """Return the kind of source that all files are."""
    seen: dict[SourceKind, str] = {}
    for path in _choose_examples(paths):
        found = look_at_file(path_from_text(path))
        kind = _KIND_OF_FORMAT.get(found.name)
        if kind is None:
            raise DatasetError(_describe_unknown(path, found))
        seen.setdefault(kind, f"{printable(os.path.basename(path))} is {found.what}")
    if len(seen) > 1:
        raise ConfigError(
            f"{', '.join(seen.values())}: give files of one kind, or name it with --source"
        )
    return next(iter(seen))


def _choose_examples(paths: Sequence[str]) -> Sequence[str]:
    """Return all of a few files; of many, the first of each form that their names have."""
    if len(paths) <= _LOOKED_AT_MAX:
        return paths
    examples: dict[str, str] = {}
    for path in paths:
        examples.setdefault(re.sub(r"\d+", "0", os.path.basename(path)), path)
    return list(examples.values())


def _describe_unknown(path: str, found: FileFormat) -> str:
    shown = printable(path)
    if sniff_file(encode_name(path)) is not None:
        return f"{shown} is one image: give the folder that holds the images"
    if is_label_name(path):
        return (
            f"{shown} is a file of labels: give the folder that holds the images, and name the "
            "file with --labels"
        )
    remedy = f": {found.remedy}" if found.remedy else ""
    return (
        f"{shown} is a file: give a folder of images, or tar, TFRecord or Parquet files; it is "
        f"{found.what}{remedy}"
    )


def _find_labels(
    spec: SourceSpec, folder: Path, contents: FolderContents, *, is_forced: bool
) -> SourceSpec:
    """Return the spec of a folder of images with the one file that may have their labels."""
    spec = replace(spec, kind="labelled-folder")
    if spec.labels_file:
        return spec  # rows of the file may have splits
    if spec.label_kind == "none":
        return _choose_folder(spec, folder, contents.folders, is_forced=is_forced)
    if not contents.labels:
        raise ConfigError(
            f"{_show(folder)} holds images without labels: name the file that has them with "
            "--labels, put the images into a folder per class, or give --label-kind none"
        )
    if len(contents.labels) > 1:
        raise ConfigError(
            f"{_show(folder)} holds {_name_some(contents.labels)}: choose the file that has the "
            "labels with --labels"
        )
    return replace(spec, labels_file=path_to_text(folder / contents.labels[0]))


def _lists_files(spec: SourceSpec, path: Path, folder: Path) -> bool:
    """Return whether one of the first rows of a file lists a file below ``folder``."""
    try:
        rows = open_label_file(
            path, image=spec.image, label=spec.label, label_kind=spec.label_kind
        ).rows()
        names = NameFinder(path_to_text(folder), path_to_text(folder), NameKeys(array("Q")))
        return any(names.find(row.file) for row in itertools.islice(rows, _ROWS_TRIED))
    except (ConfigError, DatasetError):
        return False  # it is no file of labels


def _choose_class_folder(
    spec: SourceSpec, folder: Path, names: list[str], *, is_forced: bool
) -> SourceSpec:
    """Return the spec of the folder, or of the split in it that was chosen.

    Raises ConfigError for folders that are splits, or hold containers instead of images.
    """
    chosen = _choose_folder(spec, folder, names, is_forced=is_forced)
    if chosen.containers != spec.containers:
        return chosen
    for name in names[:_FOLDERS_TRIED]:
        inside = look_at_folder(folder / name)
        if inside.containers and not inside.images and not inside.folders:
            raise ConfigError(
                f"{_show(folder)} holds no images, and {_show(folder / name)} has "
                f"{_describe(inside)}: give one such folder"
            )
    return chosen


def _choose_folder(
    spec: SourceSpec, folder: Path, names: list[str], *, is_forced: bool
) -> SourceSpec:
    """Return the spec of the folder, or of the split in it that was chosen."""
    if not spec.split and not spec.all_splits and _is_test_set(folder, names):
        split: str | None = names[0]
        note = f"the classes are the folders in {_show(folder / names[0])}, the only one there"
    else:
        split, note = _choice(spec).choose_folder(folder, names)
    spec = replace(spec, notes=(*spec.notes, note)) if note else spec
    if split is None:
        return spec
    path = path_to_text(folder / split)
    kind = spec.kind if is_forced else "class-folder"
    inside = replace(spec, kind=kind, location=path, containers=(path,), split="")
    return _recognise_folder(inside, folder / split, is_forced=is_forced)


def _is_test_set(folder: Path, names: list[str]) -> bool:
    """Return whether a folder holds a test set alone, with its classes, as many archives do.

    A training set alone is asked about: then something else is missing.
    """
    if len(names) != 1 or split_of(names[0]) != "test" or not is_split(names[0]):
        return False
    inside = look_at_folder(folder / names[0])
    return bool(inside.folders) and not (inside.images or inside.containers)


def _choose_files(spec: SourceSpec, paths: Sequence[str]) -> SourceSpec:
    """Return the spec of the files, or of those of the split that was chosen."""
    chosen, note = _choice(spec).choose_files(paths)
    if note:
        spec = replace(spec, notes=(*spec.notes, note))
    return replace(
        spec, containers=chosen or tuple(paths), split=spec.split if chosen is None else ""
    )


def _choice(spec: SourceSpec) -> SplitChoice:
    return SplitChoice(spec.split, spec.all_splits, printable(spec.location))


def _join(folder: Path, names: list[str]) -> tuple[str, ...]:
    return tuple(sorted(path_to_text(folder / name) for name in names))


def _hold_images(folder: Path, names: list[str]) -> bool:
    return any(sniff_file(os.fsencode(folder / name)) is not None for name in names)


def _describe(contents: FolderContents) -> str:
    """Return what a folder holds, for a message."""
    counts = {CONTAINERS[kind]: len(names) for kind, names in contents.containers.items()}
    counts |= {"folders": len(contents.folders), "images": contents.images}
    seen = [
        f"{count:,} {what if count > 1 else what.removesuffix('s')}"
        for what, count in sorted(counts.items())
        if count
    ]
    return " and ".join(seen)


def _check_options(spec: SourceSpec) -> None:
    """Raise ConfigError for options that have no meaning for the kind of source."""
    if spec.kind not in LOOSE_KINDS:
        if spec.split and spec.kind != "parquet":
            raise _choice(spec).no_splits("none of its files is called so")
        if spec.labels_file and spec.kind in ("tfrecord", "parquet"):
            raise ConfigError(
                f"--labels has no meaning for {spec.kind}, which has its labels in its files: name "
                "their feature or column with --label"
            )
        return
    if len(spec.containers) > 1:
        raise ConfigError(
            f"{printable(spec.location)} is {len(spec.containers):,} files: --source {spec.kind} "
            "is for one folder"
        )
    if spec.kind == "labelled-folder" and not spec.labels_file:
        given = {"--image": spec.image, "--label": spec.label}
        remedy = "give the file that has them with --labels"
    elif spec.kind == "class-folder":
        given = {"--image": spec.image, "--label": spec.label, "--labels": spec.labels_file}
        given["--label-base"] = "" if spec.label_base is None else str(spec.label_base)
        given["--label-kind float"] = "float" if spec.label_kind == "float" else ""
        remedy = "leave it out, or give --source labelled-folder"
    else:
        return
    option = next((option for option, value in given.items() if value), None)
    if option is not None:
        what = "a folder of classes" if spec.kind == "class-folder" else "a folder without labels"
        raise ConfigError(f"{option} has no meaning for {what}: {remedy}")


def _name_some(names: Sequence[str]) -> str:
    shown = ", ".join(printable(path_to_text(name)) for name in names[:_SHOWN_MAX])
    more = len(names) - _SHOWN_MAX
    return f"{shown} and {more:,} more" if more > 0 else shown


def _show(path: Path) -> str:
    return printable(path_to_text(path))
