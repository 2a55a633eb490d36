"""Labels through the reading that packing gives them, in lists made by hand."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feeder.dataset.manifest import Manifest
from feeder.errors import FeederError
from feeder.pack.classes import ClassPlan, plan_classes
from feeder.pack.items import SourceItems, merge_lists
from feeder.pack.label_reading import Way, read_labels
from feeder.plan.labels import LabelChoice, LabelSpec
from feeder.source.source import SourceSpec
from tests.source.item_lists import make_list

BOTH = "labels can be read in two ways: "


class LabelsRead(NamedTuple):
    """Labels as they were read."""

    way: Way
    labels: list[Any]
    """A class, the classes or the values of each item; or the reason why it has none."""
    classes: tuple[str, ...]
    spec: LabelSpec
    digest: str


def read_them(
    labels: Sequence[Any],
    *,
    parts: Sequence[Sequence[int]] = (),
    kind: LabelChoice | None = None,
    uncertain: Any = "",
    known: Manifest | None = None,
    class_names: Path | None = None,
    names: Sequence[dict[int, str]] = (),
    **options: Any,
) -> LabelsRead:
    """Read labels; ``parts`` are the places in ``labels`` that each container holds, in order.

    ``names`` has the names of class numbers in each container.
    """
    parts = parts or [range(len(labels))]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # a disk would take most of the time
        folder = Path(name)
        lists = [
            make_list(
                folder,
                [(str(at), labels[at]) for at in part],
                container=number,
                label_kind=kind,
                names=names[number] if names else None,
                **options,
            )
            for number, part in enumerate(parts)
        ]
        items = merge_lists(folder, lists)
        spec = SourceSpec(
            kind="parquet",
            location="x",
            containers=("x",) * len(parts),
            label_kind=kind,
            uncertain=uncertain,
            class_names_file="" if class_names is None else str(class_names),
        )
        reading = read_labels(items, spec)
        plan = plan_classes(items, reading, spec, known)
        rows = np.array([row for row in range(len(items)) if row not in reading.bad], np.int64)
        found: dict[int, Any] = dict.fromkeys(range(len(labels)))
        numbers = plan.labels_of(rows)
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            values = _stored_values(plan, items, row)
            found[int(items.name(row))] = number if values is None else values
        found |= {int(items.name(row)): reason for row, reason in reading.bad.items()}
        found |= {int(each["path"]): each["reason"] for part in lists for each in part.rejected()}
        read = [*found.values()]
        return LabelsRead(reading.way, read, plan.classes, plan.labels, plan.digest())


def _stored_values(plan: ClassPlan, items: SourceItems, row: int) -> list[Any] | None:
    """The classes or floats that a shard stores for an item; None for one class."""
    container, form, label = (int(items.rows[row][each]) for each in ("container", "form", "label"))
    stored = plan.stored_row(items, container, form, label)
    if plan.labels.kind == "float":
        return np.frombuffer(stored, "<f4").tolist()
    if plan.labels.kind == "multi":
        bits = np.unpackbits(np.frombuffer(stored, np.uint8), bitorder="little")
        return np.flatnonzero(bits).tolist()
    assert stored == b""
    return None


def read_or_refuse(
    labels: Sequence[Any], options: dict[str, Any], parts: Sequence[Any] = ()
) -> LabelsRead | tuple[type[FeederError], str]:
    """Return labels as they were read, or the error and its message without its example."""
    try:
        return read_them(labels, parts=parts, **options)
    except FeederError as error:
        message = re.sub(r" \(such as .*? of \d+\)", "", str(error))  # the first that there is
        return type(error), message


def advised_kinds(message: str) -> set[str]:
    """Return the kinds of labels that a message advises to give."""
    advice = message.rpartition("--label-kind")[2]
    return set(
        re.findall(r"\b(?:index|name(?! another)|one-hot|multi-hot|multi(?!-)|float)\b", advice)
    )
