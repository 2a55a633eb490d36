"""Whether a validation set has the classes of its training set."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

from feeder.dataset.manifest import Manifest, load_manifest
from feeder.errors import DatasetError
from feeder.process.path_text import printable
from feeder.source.location.splits import pair_splits


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


def class_warnings(data: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each validation set in ``data`` that has other classes.

    ``data`` has the datasets by the names that they are served under, which make pairs of them.
    """
    for name, training in pair_splits(data).items():
        try:
            manifests = [load_manifest(Path(data[each])) for each in (name, training)]
        except DatasetError:  # opening it reports why
            continue
        difference = describe_other_classes(*manifests)
        if difference:
            yield (
                f"warning: {name} has other classes than {training}, so the same label means "
                f"another class: {difference}; pack it with feeder pack --classes-of "
                f"{data[training]}"
            )
