"""What a loader knows about its dataset, in the attributes that training scripts look for."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Literal, NoReturn

from feeder.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The dataset of a loader; ``len()`` is its number of samples, ``str()`` its name."""

    name: str
    """The name that it is served by."""
    classes: tuple[str, ...]
    """The class names by label; none where ``label_kind`` is "float" or "none"."""
    fingerprint: str
    """The content fingerprint: a hash of images, labels, classes, order and number of shards."""
    samples: int
    """The number of samples, over all ranks."""
    label_kind: Literal["index", "multi", "float", "none"] = "index"
    """What a sample has: one class, any number of classes, floats, or no label. ``Batch`` documents
    a batch's labels of each."""
    label_width: int = 1
    """The second dimension of a batch's labels where they are "multi" or "float", else 1."""

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

        ``wanted`` is a loader, whose labels must be of the same kind, or the list of class names by
        label.
        """
        other = getattr(wanted, "dataset", wanted)
        if isinstance(other, DatasetInfo) and other.label_kind != self.label_kind:
            raise ConfigError(
                f"dataset {self.name!r} has {describe_samples(self)}, dataset {other.name!r} of "
                f"classes_of has {describe_samples(other)}: pack both with labels of one kind"
            )
        names = getattr(wanted, "classes", wanted)
        if isinstance(names, str | set | frozenset) or not isinstance(names, Iterable):
            raise ConfigError(
                "classes_of must be a loader or a list of class names in the order of their "
                f"labels, got {wanted!r}"
            )
        names = tuple(names)
        if names == self.classes:
            return
        if self.label_kind in ("float", "none"):
            raise ConfigError(
                f"dataset {self.name!r} has {describe_samples(self)} and no classes, classes_of "
                f"has {len(names)}: leave classes_of out"
            )
        pairs = enumerate(zip_longest(self.classes, names))
        label, pair = next((label, pair) for label, pair in pairs if pair[0] != pair[1])
        here, there = ("missing" if name is None else repr(name) for name in pair)
        raise ConfigError(
            f"dataset {self.name!r} has {len(self.classes)} classes, classes_of has {len(names)}, "
            f"and class {label}, the first that differs, is {here} here and {there} there: pack "
            "this dataset with `feeder pack SRC DST --classes-of OTHER`, where OTHER is the other "
            "dataset as packed, so that equal labels mean the same class"
        )


def describe_samples(dataset: DatasetInfo) -> str:
    """Return e.g. "samples of 3 classes", by the kind of the labels, for messages."""
    match dataset.label_kind:
        case "multi":
            return f"samples of any number of {dataset.label_width:,} classes"
        case "float":
            return (
                f"samples with {dataset.label_width:,} float{'s' * (dataset.label_width != 1)} each"
            )
        case "none":
            return "samples without labels"
        case _:
            classes = len(dataset.classes)
            return f"samples of {classes:,} class{'es' * (classes != 1)}"
