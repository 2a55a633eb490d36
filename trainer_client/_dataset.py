"""What a loader knows about its dataset, in the attributes that training scripts look for."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import NoReturn

from feeder.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The dataset of a loader; ``len()`` is its number of samples, ``str()`` its name."""

    name: str
    """The name that it is served by."""
    classes: tuple[str, ...]
    """The class names by label."""
    fingerprint: str
    """The identity of the packed dataset."""
    samples: int
    """The number of samples, over all ranks."""

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse access by index: the images are with the feeder."""
        raise TypeError(
            f"dataset {self.name!r} is a feeder's and has no item {index!r} here: iterate over the "
            "loader"
        )

    def __str__(self) -> str:
        return self.name

    @cached_property
    def class_to_idx(self) -> dict[str, int]:
        """The labels by class name, as torchvision's datasets have them."""
        return {name: label for label, name in enumerate(self.classes)}

    def check_classes(self, wanted: object) -> None:
        """Raise ConfigError unless the classes are those of ``wanted``, label by label.

        ``wanted`` is a loader, or the list of class names by label.
        """
        names = getattr(wanted, "classes", wanted)
        if isinstance(names, str | set | frozenset) or not isinstance(names, Iterable):
            raise ConfigError(
                "classes_of must be a loader or a list of class names in the order of their "
                f"labels, got {wanted!r}"
            )
        names = tuple(names)
        if names == self.classes:
            return
        pairs = enumerate(zip_longest(self.classes, names))
        label, pair = next((label, pair) for label, pair in pairs if pair[0] != pair[1])
        here, there = ("missing" if name is None else repr(name) for name in pair)
        raise ConfigError(
            f"dataset {self.name!r} has {len(self.classes)} classes, classes_of has {len(names)}, "
            f"and class {label}, the first that differs, is {here} here and {there} there: pack "
            "this dataset with `feeder pack SRC DST --classes-of OTHER`, where OTHER is the other "
            "dataset as packed, so that equal labels mean the same class"
        )
