"""Which served dataset is the validation set of which, and whether both have the same classes.

train            val                 one of TRAINING and one of VALIDATION, alone
imagenet-train   imagenet-val        or as a word of names that are equal otherwise
"""

import re
from collections.abc import Iterable
from itertools import zip_longest
from typing import Final, Literal

from feeder.dataset.manifest import Manifest
from feeder.process.path_text import printable

TRAINING: Final = ("train", "training")
VALIDATION: Final = ("val", "valid", "validation", "dev", "eval", "test")
_WORD: Final = re.compile(rf"(?<![^\W_])(?:{'|'.join(TRAINING + VALIDATION)})(?![^\W_])", re.I)


def split_of(name: str) -> tuple[str, Literal["train", "val"]] | None:
    """Return what is left of a name without the word for its split, and the split.

    None for a name without such a word, or with several.
    """
    words = _WORD.findall(name)
    if len(words) != 1:
        return None
    return _WORD.sub("*", name), "train" if words[0].lower() in TRAINING else "val"


def pair_splits(names: Iterable[str]) -> dict[str, str]:
    """Return the training set of each validation set that has exactly one."""
    training: dict[str, list[str]] = {}
    validation: dict[str, str] = {}
    for name in names:
        split = split_of(name)
        if split is not None and split[1] == "train":
            training.setdefault(split[0], []).append(name)
        elif split is not None:
            validation[name] = split[0]
    found = {name: training.get(stem, []) for name, stem in validation.items()}
    return {name: trains[0] for name, trains in found.items() if len(trains) == 1}


def describe_other_classes(manifest: Manifest, training: Manifest) -> str:
    """Return the first class that differs, as a clause; empty if none does.

    Labels are only numbers, so classes in another order are other classes. Labels of different
    kinds, or without classes, are not compared.
    """
    if manifest.labels.kind != training.labels.kind or not training.classes:
        return ""
    pairs = enumerate(zip_longest(manifest.classes, training.classes))
    for number, names in pairs:
        if names[0] != names[1]:
            first, second = (printable(name) if name else "missing" for name in names)
            return f"class {number} is {first} and {second}"
    return ""
