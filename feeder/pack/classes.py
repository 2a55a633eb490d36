"""The classes of a source: one number for each, from what all of its containers call them.

names                  the classes are the names, sorted; or as --class-names orders them
numbers                the classes are the numbers, with the names that the source has, if any
rows of 0 and 1        the classes are the places in the rows
--classes-of DATASET   the classes are that dataset's, found by name; by number where the source
                       has no names
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.manifest import Manifest
from feeder.errors import ConfigError, DatasetError
from feeder.pack.items import SourceItems
from feeder.pack.label_reading import LabelReading
from feeder.plan.labels import LabelKind, LabelSpec
from feeder.process.path_text import path_from_text, printable
from feeder.process.regular_file import read_regular
from feeder.source.listing import CLASSES_MAX
from feeder.source.raw_labels import Form, decode_values
from feeder.source.source import SourceSpec
from feeder.survey.numbers import plural

_FILE_BYTES_MAX: Final = 256 << 20
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
    text_classes: NDArray[np.int64]
    """The class of each of the source's texts; 0 for a text that is no class."""

    def digest(self) -> str:
        """Hash the classes, in order, and what labels are."""
        names = "\0".join((*self.classes, self.labels.kind, str(self.labels.width)))
        data = names.encode("utf-8", "surrogateescape")
        return hashlib.blake2b(data, digest_size=16).hexdigest()

    def labels_of(self, items: SourceItems, rows: NDArray[np.void]) -> NDArray[np.int64]:
        """Return the classes (n,) of items of kind "index", from their ITEM records (n,)."""
        classes = np.zeros(len(rows), np.int64)
        if self.labels.kind != "index":
            return classes
        forms, labels = np.array(rows["form"]), np.array(rows["label"])
        is_done = forms == Form.TEXT
        classes[is_done] = self.text_classes[labels[is_done]]
        if self.reading.way in ("names", "numbers"):
            is_number = forms == Form.NUMBER
            numbers, places = np.unique(labels[is_number], return_inverse=True)
            is_named, base = self.reading.is_named, self.reading.base
            keys = (str(number) if is_named else number - base for number in numbers.tolist())
            classes[is_number] = np.array([self.class_of[key] for key in keys], np.int64)[places]
            is_done |= is_number
        for at in np.flatnonzero(~is_done).tolist():
            container = int(rows["container"][at])
            key = self.reading.keys(items, container, int(forms[at]), int(labels[at]))
            classes[at] = self.class_of[key[0]]  # type: ignore[index]
        return classes

    def stored_row(self, items: SourceItems, container: int, form: int, label: int) -> bytes:
        """What the shard stores beside an item's record; empty for kind "index"."""
        if self.labels.kind not in ("multi", "float"):
            return b""
        if form == Form.REALS and self.labels.kind == "float":
            return decode_values(items.text, label, form).tobytes()  # as the listing has stored it
        keys = self.reading.keys(items, container, form, label)
        if self.labels.kind == "float":
            return self.labels.encode_floats(keys)  # type: ignore[arg-type]
        return self.labels.encode_multi(self.class_of[key] for key in keys)  # type: ignore[index]


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
    width = reading.width if kind == "float" else 1
    if kind in ("index", "multi"):
        used = reading.used
        if reading.way in _ROWS and used:
            used = {*range(reading.width)}
        given = None
        if spec.kind != "imagenet-val":  # which reads the file itself: it translates its numbers
            given = _read_class_names(spec.class_names_file)
        if reading.is_named:
            classes = _named_classes(used, spec, given, known)
            class_of = {name: number for number, name in enumerate(classes)}
        else:
            classes, class_of = _number_classes(items, reading, spec, used, given, known)
        if len(classes) > CLASSES_MAX:
            raise ConfigError(
                f"{len(classes):,} classes are more than {CLASSES_MAX:,}: choose another field "
                "with --label"
            )
        if not classes or not used:
            raise DatasetError(
                "no image has a label: choose another field with --label, or give --label-kind none"
            )
        width = len(classes) if kind == "multi" else 1
    keys: Iterable[str | int] = items.texts
    if not reading.is_named:
        values = reading.values - reading.base
        keys = (int(value) if value.is_integer() else -1 for value in values.tolist())
    return ClassPlan(
        labels=LabelSpec(kind=kind, width=width),
        classes=classes,
        reading=reading,
        class_of=class_of,
        text_classes=np.array([class_of.get(key, 0) for key in keys], np.int64),
    )


def _named_classes(
    used: set[str | int],
    spec: SourceSpec,
    given: tuple[str, ...] | None,
    known: Manifest | None,
) -> tuple[str, ...]:
    names = sorted(map(str, used))
    allowed = known.classes if known is not None else given
    if allowed is None:
        return tuple(names)
    unknown = sorted(set(names).difference(allowed))
    if not unknown:
        return allowed
    more = len(unknown) - 1
    others = "" if not more else ", nor is 1 other" if more == 1 else f", nor are {more} others"
    what = f"class {printable(unknown[0])}"
    whose, remedy = "names of --class-names", "add it there"
    if known is not None:
        whose = "classes of the dataset that --classes-of names"
        remedy = "mend the labels, or pack without --classes-of"
        if spec.kind == "class-folder":
            what = f"class folder {printable(spec.containers[0])}/{printable(unknown[0])}"
            remedy = "rename class folders to the names there, or move them out of the source"
    raise ConfigError(f"{what} is not among the {len(allowed)} {whose}{others}: {remedy}")


def _number_classes(
    items: SourceItems,
    reading: LabelReading,
    spec: SourceSpec,
    used: set[str | int],
    given: tuple[str, ...] | None,
    known: Manifest | None,
) -> tuple[tuple[str, ...], dict[str | int, int]]:
    """The classes of a source that numbers them, and the class of each number (from 0)."""
    numbers = sorted(map(int, used))
    largest = numbers[-1] if numbers else -1
    base = 0 if reading.way in _ROWS else reading.base
    if given is not None:
        _check_not_names(numbers, reading, spec, given, "--class-names")
        if largest >= len(given):
            raise ConfigError(
                f"class {largest} has no name: --class-names names "
                f"{plural(len(given), 'class', 'classes')}, from number 0"
            )
        if reading.way in _ROWS and len(given) != reading.width:
            raise ConfigError(
                f"--class-names names {len(given)} classes, rows of 0 and 1 are of "
                f"{reading.width}: name each"
            )
        names = dict(enumerate(given))
    else:
        names = _own_names(items, numbers, base)
    count = max(largest, max(names, default=-1)) + 1
    if count > CLASSES_MAX:
        raise ConfigError(
            f"class number {largest + reading.base:,} is too large; the most is "
            f"{CLASSES_MAX - 1:,}: choose another field with --label, --label-kind name if it "
            "names a class, or float if it is a value"
        )
    if known is None:
        classes = tuple(names.get(number, str(number)) for number in range(count))
        if len(set(classes)) < count:
            name = next(name for name in classes if classes.count(name) > 1)
            raise DatasetError(
                f"two classes are called {printable(name)}: give the name of each with "
                "--class-names"
            )
        return classes, {number: number for number in range(count)}
    whose = "the dataset that --classes-of names"
    number_of = {name: number for number, name in enumerate(known.classes)}
    class_of: dict[str | int, int] = {}
    if not names:
        _check_not_names(numbers, reading, spec, known.classes, whose)
    for number in numbers:
        name = names.get(number, str(number))
        match = number_of.get(name) if names else number
        if match is None or match >= len(known.classes):
            raise ConfigError(
                f"class {number}{f', {printable(name)},' if names else ''} is not among the "
                f"{len(known.classes)} classes of {whose}: mend the labels, give the names there "
                "with --class-names, or pack without --classes-of"
            )
        class_of[number] = match
    return known.classes, class_of


def _own_names(items: SourceItems, numbers: list[int], base: int) -> dict[int, str]:
    """The names that the source has for its classes, by number from 0."""
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
    by_name = {name: number for number, name in enumerate(classes)}
    may_be_names = spec.label_kind != "index" and reading.way not in _ROWS
    for number in numbers if may_be_names else ():
        label = number + reading.base
        other = by_name.get(str(label), number)
        if other != number:
            raise ConfigError(
                f"labels can be read in two ways: {label} is the name of class {other} of {whose}, "
                f"and the number of the class {printable(classes[number])}: give --label-kind name "
                "or index"
                if number < len(classes)
                else f"label {label} is the name of class {other} of {whose}, and a number that it "
                "does not have: give --label-kind name"
            )


def _read_class_names(path: str) -> tuple[str, ...] | None:
    """Read the name of each class, one a line; None without a file."""
    if not path:
        return None
    file = path_from_text(path)
    try:
        text = read_regular(file, _FILE_BYTES_MAX).decode("utf-8-sig")
        names = tuple(map(str.strip, text.splitlines()))
    except OSError as error:
        raise ConfigError(f"--class-names {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--class-names {file} is not UTF-8 at byte {error.start}: convert it"
        ) from None
    while names and not names[-1]:
        names = names[:-1]
    seen: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if not name:
            raise ConfigError(f"--class-names {file} has an empty line {line}: name each class")
        if seen.setdefault(name, line) != line:
            raise ConfigError(
                f"--class-names {file} has {printable(name)} in lines {seen[name]} and {line}: "
                "names must differ"
            )
    if not names:
        raise ConfigError(f"--class-names {file} names no class")
    return names
