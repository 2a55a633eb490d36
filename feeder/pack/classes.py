"""The classes of a source: one number for each, from what all of its containers call them.

texts                  the classes are the texts, sorted; or as --class-names orders them
numbers                the classes are the numbers, with the names that the source has, if any
--classes-of DATASET   the classes are that dataset's, found by name; by number where the source
                       has no names
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.manifest import Manifest
from feeder.errors import ConfigError, DatasetError
from feeder.pack.merge import SourceItems
from feeder.plan.labels import LabelKind, LabelSpec
from feeder.process.path_text import path_from_text, printable
from feeder.process.regular_file import read_regular
from feeder.source.listing import CLASSES_MAX, ListedItems, ListText
from feeder.source.raw_labels import KIND_OF_FORM, LabelForm
from feeder.source.source import SourceSpec

_FILE_BYTES_MAX: Final = 256 << 20
_TEXT_FORMS: Final = ("text", "texts")


class OtherKindError(ConfigError):
    """Raised for labels of another kind than those of the dataset whose classes to take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPlan:
    """The classes of a dataset, and how to find them from its source's labels."""

    labels: LabelSpec
    classes: tuple[str, ...]
    numbers: tuple[NDArray[np.int64], ...]
    """For each container, the class by the number that its items have."""

    def digest(self) -> str:
        """Return a hash of the classes, in order, and of what labels are."""
        names = "\0".join((*self.classes, self.labels.kind, str(self.labels.width)))
        data = names.encode("utf-8", "surrogateescape")
        return hashlib.blake2b(data, digest_size=16).hexdigest()

    def labels_of(self, container: int, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the classes (n,) of items of kind "index" from the labels (n,) in their list."""
        return self.numbers[container][labels]

    def stored_row(self, text: ListText, container: int, label: int) -> bytes:
        """Return what the shard stores beside an item's record; empty for kind "index".

        ``label`` is where in ``text`` the item's label is.
        """
        if self.labels.kind == "float":
            return self.labels.encode_floats(text.label_values(label, "floats").tolist())
        if self.labels.kind == "multi":
            values = self.numbers[container][text.label_values(label, None).astype(np.int64)]
            return self.labels.encode_multi(values.tolist())
        return b""


def plan_classes(items: SourceItems, spec: SourceSpec, known: Manifest | None) -> ClassPlan:
    """Return the classes of a source.

    ``known`` is the dataset whose classes it must have. Raises ConfigError for labels that fit
    neither it nor the list of names, and DatasetError for containers that contradict each other.
    """
    lists = items.lists
    form = _common_form(lists)
    kind: LabelKind = KIND_OF_FORM[form]
    if known is not None and known.labels.kind != kind:
        raise OtherKindError(
            f"--classes-of: that dataset's labels are of kind {known.labels.kind}, these are of "
            f"kind {kind}: give --label-kind {known.labels.kind}"
        )
    if kind == "float":
        width = next(each.listed.values for each in lists if each.listed.values)
        if known is not None and known.labels.width != width:
            raise ConfigError(
                f"--classes-of: that dataset's labels have {known.labels.width} values each, these "
                f"{width}"
            )
        return ClassPlan(labels=LabelSpec(kind="float", width=width), classes=(), numbers=())
    if kind == "none":
        nothing = np.zeros(1, np.int64)
        return ClassPlan(labels=LabelSpec(kind="none"), classes=(), numbers=(nothing,) * len(lists))
    given = None
    if spec.kind != "imagenet-val":  # which reads the file itself: it translates its numbers
        given = _read_class_names(spec.class_names_file)
    if form in _TEXT_FORMS:
        classes = _text_classes(lists, spec, given, known)
        number_of = {name: number for number, name in enumerate(classes)}
        numbers = [
            np.array([number_of[text] for text in items.listed.texts], np.int64) for items in lists
        ]
    else:
        classes, number_map = _number_classes(items, form, given, known)
        numbers = [number_map] * len(lists)
    if len(classes) > CLASSES_MAX:
        raise ConfigError(
            f"{len(classes):,} classes are more than {CLASSES_MAX:,}: choose another field with "
            "--label"
        )
    if not classes:
        raise DatasetError(
            "no image has a label: choose another field with --label, or give --label-kind none"
        )
    width = len(classes) if kind == "multi" else 1
    return ClassPlan(
        labels=LabelSpec(kind=kind, width=width), classes=classes, numbers=tuple(numbers)
    )


def _common_form(lists: Sequence[ListedItems]) -> LabelForm:
    """Return the form of all labels; "none" where there is no item at all."""
    forms = {items.listed.form: items.listed for items in lists if items.listed.form is not None}
    numbers = [each.listed for each in lists if each.listed.form == "numbers"]
    if "texts" in forms and numbers and not any(each.has_values for each in numbers):
        del forms["numbers"]  # lists without any class fit texts, too
    if len(forms) > 1:
        (one, first), (other, second) = list(forms.items())[:2]
        raise DatasetError(
            f"labels are of different forms: {one} in {printable(first.container)}, {other} in "
            f"{printable(second.container)}: mend the labels, or pack them apart"
        )
    widths = {items.listed.values: items.listed for items in lists if items.listed.values}
    if len(widths) > 1:
        (one_width, first), (other_width, second) = list(widths.items())[:2]
        raise DatasetError(
            f"labels have {one_width} values in {printable(first.container)} and {other_width} in "
            f"{printable(second.container)}: pack them apart"
        )
    return next(iter(forms), None) or "none"


def _text_classes(
    lists: Sequence[ListedItems],
    spec: SourceSpec,
    given: tuple[str, ...] | None,
    known: Manifest | None,
) -> tuple[str, ...]:
    texts = sorted({text for items in lists for text in items.listed.texts})
    allowed = known.classes if known is not None else given
    if allowed is None:
        return tuple(texts)
    unknown = sorted(set(texts).difference(allowed))
    if unknown:
        raise ConfigError(_describe_unknown(unknown, len(allowed), spec, known is not None))
    return allowed


def _describe_unknown(unknown: list[str], classes: int, spec: SourceSpec, is_known: bool) -> str:
    more = len(unknown) - 1
    others = "" if not more else ", nor is 1 other" if more == 1 else f", nor are {more} others"
    name = printable(unknown[0])
    if not is_known:
        return (
            f"class {name} is not among the {classes} names of --class-names{others}: add it there"
        )
    whose = f"is not among the {classes} classes of the dataset that --classes-of names{others}"
    if spec.kind == "class-folder":
        return (
            f"class folder {printable(spec.containers[0])}/{name} {whose}: rename class folders to "
            "the names there, or move them out of the source"
        )
    return f"class {name} {whose}: mend the labels, or pack without --classes-of"


def _number_classes(
    items: SourceItems, form: LabelForm, given: tuple[str, ...] | None, known: Manifest | None
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    names: dict[int, str] = {}
    for each in items.lists:
        for number, name in each.listed.names.items():
            if names.setdefault(number, name) != name and given is None:
                raise DatasetError(
                    f"class {number} is called {printable(names[number])} and {printable(name)} in "
                    f"{printable(each.listed.container)}: mend it, or give --class-names"
                )
    largest = int(_used_numbers(items, form).max(initial=-1))
    if given is not None:
        names = dict(enumerate(given))
    count = max(largest, max(names, default=-1)) + 1
    if given is not None and largest >= len(given):
        raise ConfigError(
            f"class {largest} has no name: --class-names names {len(given)} classes, from number 0"
        )
    if count > CLASSES_MAX:
        raise ConfigError(
            f"class number {largest:,} is too large; the most is {CLASSES_MAX - 1:,}: choose "
            "another field with --label, or --label-kind float"
        )
    if known is None:
        classes = tuple(names.get(number, str(number)) for number in range(count))
        if len(set(classes)) < count:
            name = next(name for name in classes if classes.count(name) > 1)
            raise DatasetError(
                f"two classes are called {printable(name)}: give the name of each with "
                "--class-names"
            )
        return classes, np.arange(max(count, 1), dtype=np.int64)
    return known.classes, _match_known(items, form, names, known)


def _match_known(
    items: SourceItems, form: LabelForm, names: dict[int, str], known: Manifest
) -> NDArray[np.int64]:
    """Return the number in the known dataset of each class number that an item has."""
    used = _used_numbers(items, form)
    count = int(used.max(initial=-1)) + 1
    if not names:
        if count > len(known.classes):
            raise ConfigError(
                f"class {count - 1} is not among the {len(known.classes)} classes of the dataset "
                "that --classes-of names: mend the labels, or pack without --classes-of"
            )
        return np.arange(max(count, 1), dtype=np.int64)
    number_of = {name: number for number, name in enumerate(known.classes)}
    numbers = np.zeros(max(count, 1), np.int64)
    for number in used.tolist():
        name = names.get(number, str(number))
        if name not in number_of:
            raise ConfigError(
                f"class {number}, {printable(name)}, is not among the {len(known.classes)} classes "
                "of the dataset that --classes-of names: give the names there with --class-names"
            )
        numbers[number] = number_of[name]
    return numbers


def _used_numbers(items: SourceItems, form: LabelForm) -> NDArray[np.int64]:
    """Return the class numbers that items have, sorted, each once."""
    labels = items.rows["label"]
    if form == "number":
        return np.unique(labels).astype(np.int64)
    used: set[int] = set()
    for at in labels:
        used.update(items.text.label_values(int(at), form).tolist())
    return np.array(sorted(used), np.int64)


def _read_class_names(path: str) -> tuple[str, ...] | None:
    """Return the lines of a file with the name of each class; None without one."""
    if not path:
        return None
    file = path_from_text(path)
    try:
        names = tuple(read_regular(file, _FILE_BYTES_MAX).decode("utf-8-sig").splitlines())
    except OSError as error:
        raise ConfigError(f"--class-names {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--class-names {file} is not UTF-8 at byte {error.start}: convert it"
        ) from None
    names = tuple(name.strip() for name in names)
    while names and not names[-1]:
        names = names[:-1]
    seen: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if not name:
            raise ConfigError(f"--class-names {file} has an empty line {line}: name each class")
        if name in seen:
            raise ConfigError(
                f"--class-names {file} has {printable(name)} in lines {seen[name]} and {line}: "
                "names must differ"
            )
        seen[name] = line
    if not names:
        raise ConfigError(f"--class-names {file} names no class")
    return names
