"""What ``feeder select`` chooses from: datasets, each once, and those of selections."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from feeder.choose.members import check_member, find_member
from feeder.choose.narrow import FROM_MEMBER, Input
from feeder.dataset.files import Location, local_folder, parse_location
from feeder.dataset.opened import Dataset
from feeder.dataset.selection import Selection, is_selection, merge_labels
from feeder.dataset.selection_writer import merge_classes
from feeder.errors import ConfigError
from feeder.plan.labels import LabelSpec

_OPEN_SHARDS: Final = 2  # they are read one after the other
_LABELS_AT_ONCE: Final = 1 << 16


@dataclass(slots=True, eq=False)
class Sources:
    """What the DSTs of a command are: ``parts`` by text, and the datasets that these need."""

    parts: dict[str, Dataset | Selection]
    inputs: dict[str, Input]
    """By content fingerprint, in the order of their first appearance."""
    classes: tuple[str, ...]
    labels: LabelSpec

    def rows(self, part: Dataset | Selection) -> Iterator[tuple[Input, NDArray[np.int64], Any]]:
        """Yield the datasets of a part, the ids that it has of each, and their own labels."""
        if isinstance(part, Dataset):
            yield self.inputs[part.content], np.arange(part.layout.samples), FROM_MEMBER
            return
        numbers = {name: number for number, name in enumerate(self.classes)}
        merged = np.array([numbers[name] for name in part.classes], np.int32)
        for number, member in enumerate(part.members):
            rows, ids = part.rows_of(number)
            labels = part.own_labels
            own = FROM_MEMBER if labels is None else merged[labels[rows]]
            yield self.inputs[member.content], ids, own


@contextlib.contextmanager
def open_sources(texts: Sequence[str]) -> Iterator[Sources]:
    """Open the DSTs, with all of their samples chosen."""
    parts: dict[str, Dataset | Selection] = {}
    inputs: dict[str, Input] = {}
    with contextlib.ExitStack() as stack:

        def open_dataset(location: Location) -> Dataset:
            dataset = Dataset.open(location, open_shards=_OPEN_SHARDS)
            stack.enter_context(dataset)
            mask = np.zeros(dataset.layout.samples, np.bool_)
            inputs.setdefault(dataset.content, Input(dataset, location, mask))
            return dataset

        for text in dict.fromkeys(texts):
            location = parse_location(text)
            folder = local_folder(location)
            if folder is None or not is_selection(folder):
                parts[text] = open_dataset(location)
                continue
            selection = parts[text] = Selection.open(folder)
            if selection.layout.draws is not None:
                raise ConfigError(
                    f"{text} is drawn by weight, which a selection of it would lose: select from "
                    "its datasets, with the same options"
                )
            for member in selection.members:
                if member.content not in inputs:
                    opened = open_dataset(find_member(selection, member))
                    check_member(selection, member, opened.content, opened.where)
        classes = merge_classes(part.classes for part in parts.values())
        labels = merge_labels({text: part.labels for text, part in parts.items()}, classes)
        sources = Sources(parts, inputs, classes, labels)
        for part in parts.values():
            for given, ids, own in sources.rows(part):
                given.mask[ids] = True
                if given.labels is not None or not isinstance(own, int):
                    given.own_labels()[ids] = own
        yield sources


def find_labels_of(
    given: Input, ids: NDArray[np.int64], classes: Sequence[str]
) -> NDArray[np.int32]:
    """Return the classes of the samples, those of the dataset where they have none of their own."""
    own = np.full(len(ids), FROM_MEMBER, np.int32) if given.labels is None else given.labels[ids]
    missing = np.flatnonzero(own == FROM_MEMBER)
    numbers = {name: number for number, name in enumerate(classes)}
    merged = np.array([numbers[name] for name in given.dataset.classes], np.int32)
    for first in range(0, len(missing), _LABELS_AT_ONCE):
        part = missing[first : first + _LABELS_AT_ONCE]
        own[part] = merged[given.dataset.read_records(ids[part])["label"]]
    return own
