"""The classes of a source: one number for each, from what all of its containers call them.

names                  the classes are the names, sorted; or as --class-names orders them
numbers                the classes are the numbers, with the names that the source has, if any
rows of 0 and 1        the classes are the places in the rows
--classes-of DATASET   the classes are that dataset's, found by name; by number where the source
                       has no names
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.manifest import Manifest
from feeder.errors import ConfigError, DatasetError
from feeder.pack.items import SourceItems
from feeder.pack.label_reading import LabelReading
from feeder.plan.labels import LabelKind, LabelSpec
from feeder.process.path_text import printable
from feeder.source.label_files.tables import read_class_names
from feeder.source.listing import CLASSES_MAX
from feeder.source.raw_labels import Form, stored_values
from feeder.source.source import SourceSpec

_ROWS: Final = ("one-hot", "multi-hot")
_KINDS: Final[dict[str, LabelKind]] = {
    "none": "none",
    "names": "index",
    "numbers": "index",
    "one-hot": "index",
    "lists": "multi",
    "multi-hot": "multi",
    "floats": "float",
}


class OtherKindError(ConfigError):
    """Raised for labels of another kind than those of the dataset whose classes to take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPlan:
    """The classes of a dataset, and how to find them from its source's labels."""

    labels: LabelSpec
    classes: tuple[str, ...]
    reading: LabelReading
    class_of: dict[str | int, int]
    """The class by the name or the number (from 0) that the source has for it."""
    class_of_key: NDArray[np.int64]
    """The class of each of the reading's keys, by their numbers."""

    def digest(self) -> str:
        """Hash the classes, in order, and what labels are."""
        names = "\0".join((*self.classes, self.labels.kind, str(self.labels.width)))
        data = names.encode("utf-8", "surrogateescape")
        return hashlib.blake2b(data, digest_size=16).hexdigest()

    def labels_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the classes (n,) of the items in ``rows`` (n,); 0 unless of kind "index"."""
        if self.labels.kind != "index":
            return np.zeros(len(rows), np.int64)
        return self.class_of_key[self.reading.key_of[rows]]

    def stored_row(self, items: SourceItems, container: int, form: int, label: int) -> bytes:
        """What the shard stores beside an item's record; empty for kind "index"."""
        if self.labels.kind not in ("multi", "float"):
            return b""
        if form == Form.REALS and self.labels.kind == "float":
            return stored_values(items.text, label)  # as the listing has stored it
        keys = self.reading.read(items, container, form, label)
        if self.labels.kind == "float":
            return self.labels.encode_floats(keys)
        return self.labels.encode_multi(self.class_of[key] for key in keys)


def plan_classes(
    items: SourceItems, reading: LabelReading, spec: SourceSpec, known: Manifest | None
) -> ClassPlan:
    """Find the classes of a source; ``reading`` is how its labels are read.

    ``known`` is the dataset whose classes it must have. Raises ConfigError for labels that fit
    neither it nor the list of names, and DatasetError for containers that contradict each other.
    """
    kind = _KINDS[reading.way]
    if known is not None and known.labels.kind != kind:
        raise OtherKindError(
            f"--classes-of: that dataset's labels are of kind {known.labels.kind}, these are of "
            f"kind {kind}: give --label-kind {known.labels.kind}"
        )
    if kind == "float" and known is not None and known.labels.width != reading.width:
        raise ConfigError(
            f"--classes-of: that dataset's labels have {known.labels.width} values each, these "
            f"{reading.width}"
        )
    classes: tuple[str, ...] = ()
    class_of: dict[str | int, int] = {}
    if kind in ("index", "multi"):
        classes, class_of = _find_classes(items, reading, spec, known)
    widths = {"multi": len(classes), "float": reading.width}
    return ClassPlan(
        labels=LabelSpec(kind=kind, width=widths.get(kind, 1)),
        classes=classes,
        reading=reading,
        class_of=class_of,
        class_of_key=np.array([class_of.get(key, 0) for key in reading.keys], np.int64),
    )


def _find_classes(
    items: SourceItems, reading: LabelReading, spec: SourceSpec, known: Manifest | None
) -> tuple[tuple[str, ...], dict[str | int, int]]:
    """Return the classes, and the class of each key: by its name, which a number gets first."""
    if not reading.keys:
        raise DatasetError(
            "no image has a label: choose another field with --label, or give --label-kind none"
        )
    used: list[str | int] = [*range(reading.width)]
    if reading.way not in _ROWS:
        used = sorted(reading.keys)
    count = len(used) if reading.is_named else int(used[-1]) + 1
    if count > CLASSES_MAX:
        raise ConfigError(
            f"labels reach {count:,} classes, the most is {CLASSES_MAX:,}: choose another field "
            "with --label, or give --label-kind name if the numbers are names, float if they are "
            "values"
        )
    given = None
    if spec.class_names_file and spec.kind != "imagenet-val":  # which translates its numbers by it
        given = read_class_names(spec.class_names_file)
    names: Mapping[Any, str] = {key: str(key) for key in used}
    if not reading.is_named:
        names = _name_numbers(items, reading, spec, [*map(int, used)], given, known)
    if known is not None:
        classes, whose = known.classes, "classes of the dataset that --classes-of names"
        remedy = "mend the labels, or pack without --classes-of"
        if not reading.is_named:
            remedy = f"give the names there with --class-names, {remedy}"
    elif given is not None:
        classes, whose, remedy = given, "names of --class-names", "add it there"
    else:
        classes, whose, remedy = tuple(names.values()), "", ""
    number_of = {name: number for number, name in enumerate(classes)}
    class_of = {key: number_of.get(names.get(key, ""), -1) for key in used}
    unknown = [key for key, number in class_of.items() if number < 0]
    if unknown:
        name = printable(names.get(unknown[0], ""))
        what = f"class {name if reading.is_named else unknown[0]}"
        if spec.kind == "class-folder" and known is not None:
            what = f"class folder {printable(spec.containers[0])}/{name}"
            remedy = "rename class folders to the names there, or move them out of the source"
        elif not reading.is_named and name and name != str(unknown[0]):
            what += f", {name},"
        more = len(unknown) - 1
        others = "" if not more else ", nor is 1 other" if more == 1 else f", nor are {more} others"
        raise ConfigError(f"{what} is not among the {len(classes)} {whose}{others}: {remedy}")
    return classes, class_of


def _name_numbers(
    items: SourceItems,
    reading: LabelReading,
    spec: SourceSpec,
    numbers: list[int],
    given: tuple[str, ...] | None,
    known: Manifest | None,
) -> dict[int, str]:
    """Return the name of each number from 0 on, also of those that no label has.

    They come from --class-names, from the source, else from the dataset whose classes to take.
    """
    if given is not None and reading.way in _ROWS and len(given) != reading.width:
        raise ConfigError(
            f"--class-names names {len(given)} classes, rows of 0 and 1 are of {reading.width}: "
            "name each"
        )
    if given is not None:
        _check_not_names(numbers, reading, spec, given, "--class-names")
        return dict(enumerate(given))
    own = _own_names(items, numbers, reading)
    if known is not None and not own:
        _check_not_names(numbers, reading, spec, known.classes, "the dataset of --classes-of")
        return dict(enumerate(known.classes))
    count = max(numbers[-1], *own, 0) + 1
    names = {number: own.get(number, str(number)) for number in range(count)}
    if known is None and len(set(names.values())) < count:
        name = next(name for name, times in Counter(names.values()).items() if times > 1)
        raise DatasetError(
            f"two classes are called {printable(name)}: give the name of each with --class-names"
        )
    return names


def _own_names(items: SourceItems, numbers: list[int], reading: LabelReading) -> dict[int, str]:
    """The names that the source has for its classes, by number from 0."""
    base = 0 if reading.way in _ROWS else reading.base
    names: dict[int, str] = {}
    listed = [each.listed for each in items.lists]
    for each in listed:
        for number, name in each.names.items():
            if number >= base and names.setdefault(number - base, name) != name:
                raise DatasetError(
                    f"class {number} is called {printable(names[number - base])} and "
                    f"{printable(name)} in {printable(each.container)}: mend it, or give "
                    "--class-names"
                )
    declares = next((each.container for each in listed if each.is_declared), None)
    unnamed = [number for number in numbers if number not in names]
    if declares is not None and unnamed:
        shown = ", ".join(map(printable, [*names.values()][:3]))
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        raise DatasetError(
            f"class {unnamed[0]} is not among the {len(names):,} classes that "
            f"{printable(declares)} declares ({shown}{more}): mend the labels, or name all "
            "classes with --class-names"
        )
    return names


def _check_not_names(
    numbers: list[int],
    reading: LabelReading,
    spec: SourceSpec,
    classes: tuple[str, ...],
    whose: str,
) -> None:
    """Raise ConfigError where a label may be a class's number or the name of another one."""
    if spec.label_kind == "index" or reading.way in _ROWS:
        return
    by_name = {name: number for number, name in enumerate(classes)}
    for number in numbers:
        label = number + reading.base
        other = by_name.get(str(label), number)
        if other != number:
            is_number = number < len(classes)
            of_number = f"the class {printable(classes[number])}" if is_number else "no class"
            kinds = "name or index" if is_number else "name"
            raise ConfigError(
                f"labels can be read in two ways: {label} is the name of class {other} of {whose}, "
                f"and the number of {of_number}: give --label-kind {kinds}"
            )
