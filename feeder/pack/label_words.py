"""How labels were read, in words: the summary's line, and warnings of what may be a mistake."""

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.manifest import Manifest
from feeder.pack.classes import ClassPlan
from feeder.pack.items import SourceItems
from feeder.process.path_text import printable
from feeder.source.raw_labels import is_missing_word
from feeder.source.source import SourceSpec
from feeder.survey.numbers import plural

_IMAGES_MIN: Final = 16  # of so few it is no wonder that each has a class of its own
_SPARSE: Final = 1000
_BY_FOLDER: Final = ("class-folder", "imagenet-train")


def describe_labels(
    items: SourceItems,
    spec: SourceSpec,
    plan: ClassPlan,
    known: Manifest | None,
    used: NDArray[np.int64],
) -> str:
    """Return how labels were read, as ``12 classes by folder name, "10" before "2"``.

    ``used`` are the classes that images have.
    """
    reading, fields = plan.reading, items.fields(", ", 3)
    if reading.way == "none":
        return "none"
    if reading.way == "floats":
        values = "a number" if reading.width == 1 else f"{reading.width:,} numbers"
        return f"{values} for each image{fields}"
    what = plural(len(plan.classes), "class", "classes")
    if reading.way in ("one-hot", "multi-hot"):
        how = f"from {reading.way} rows of {reading.width} numbers"
        if reading.facts.minus or reading.facts.nulls:
            how += f", {_describe_uncertain(plan, spec)}"
        if reading.way == "multi-hot" and reading.facts.none:
            how += f", {plural(reading.facts.none, 'row')} without a 1"
    else:
        by = "name" if reading.is_named else "number"
        if spec.kind in _BY_FOLDER:
            by = "folder name" if spec.kind == "class-folder" else "synset"
        how = f"by {by}" if reading.way != "lists" else f"from lists, by {by}"
        if reading.base:
            how += f" from {reading.base} on"
    if plan.labels.kind == "multi":
        what = f"any of {what}"
    if known is not None:
        how += ", as --classes-of has them"
    elif spec.class_names_file:
        how += ", as --class-names has them"
    elif reading.is_named:
        how += _describe_order(plan.classes)
    elif reading.way == "numbers" and spec.label_base is None and len(used) and used[0] == 1:
        how += " from 0 on; no image has class 0 (--label-base 1 if they count from 1)"
    return f"{what} {how}{fields}"


def label_warnings(
    items: SourceItems, spec: SourceSpec, plan: ClassPlan, images: int, used: NDArray[np.int64]
) -> Iterator[str]:
    """Yield a line for each likely mistake; ``images`` are packed, ``used`` their classes."""
    if plan.labels.kind != "index":
        return
    if plan.reading.is_named and spec.kind not in _BY_FOLDER:
        strange = [name for name in plan.classes if is_missing_word(name)]
        if strange:
            yield (
                f"a class is called {printable(strange[0])}, which stands for no label in many "
                "tables: leave these images out if it does here"
            )
    names = {number for each in items.lists for number in each.listed.names}
    unnamed = [number for number in used.tolist() if number + plan.reading.base not in names]
    if names and unnamed and plan.reading.way == "numbers" and not spec.class_names_file:
        yield (
            f"class {unnamed[0]} has no name in the source, and is called {unnamed[0]}: name all "
            "classes with --class-names"
        )
    classes = len(used)
    if spec.kind in _BY_FOLDER or images < _IMAGES_MIN:
        return
    if classes * 4 > images * 3:
        yield (
            f"{images:,} images have {classes:,} different labels{items.fields(', ', 3)}, nearly a "
            "class for each image: choose another field with --label, or give --label-kind none or "
            "float if they are no classes"
        )
    elif plan.reading.way == "numbers" and len(plan.classes) > max(_SPARSE, 2 * classes):
        yield (
            f"class numbers reach {len(plan.classes) - 1:,}, but images have only {classes:,} of "
            "these: --label-kind name makes a class of each label that there is"
        )


def _describe_order(classes: tuple[str, ...]) -> str:
    """Return the first two names that are numbers, and in another order than these."""
    numbers = [int(name) for name in classes if name.isdecimal()]
    for number, following in itertools.pairwise(numbers):
        if number > following:
            first = next(each for each in numbers if each > following)
            return f', "{first}" before "{following}"'
    return ""


def _describe_uncertain(plan: ClassPlan, spec: SourceSpec) -> str:
    if not spec.uncertain:
        return "-1 is no"
    what = "-1 and missing values" if plan.reading.facts.zero else "missing values"
    words = {"no": "are no", "yes": "are yes", "leave-out": "leave the image out"}
    return f"{what} {words[spec.uncertain]}"
