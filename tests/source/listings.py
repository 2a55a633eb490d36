"""Lists a source in this process, and shows the list as plain values."""

from dataclasses import dataclass
from pathlib import Path

from feeder.source.listing import ItemListing, ListedContainer, ListedItems
from feeder.source.raw_labels import Form, Value
from feeder.source.source import Item, Source, SourceSpec, open_source
from tests.source.item_lists import label_of, name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The list of one container."""

    facts: ListedContainer
    items: dict[str, Item]
    labels: dict[str, Value]
    """By the item's name, as the source has them."""
    forms: set[Form]
    """Of all labels."""
    stamps: dict[str, int]
    rejected: dict[str, tuple[str, str]]
    """Kind and reason, by the item's name."""


def list_container(spec: SourceSpec, work_folder: Path, container: int = 0) -> Listed:
    """List one container of ``spec`` as ``feeder pack`` does."""
    work_folder.mkdir(parents=True, exist_ok=True)
    source: Source = open_source(spec, str(work_folder))
    try:
        with ItemListing(work_folder, container, label_kind=spec.label_kind) as listing:
            source.list_items(container, listing)
            facts = listing.finish(spec.containers[container], (0, 0))
    finally:
        source.close()
    listed = ListedItems(work_folder, container, facts)
    items: dict[str, Item] = {}
    labels: dict[str, Value] = {}
    stamps: dict[str, int] = {}
    for row in range(facts.items):
        name = name_of(listed, row)
        record = listed.rows[row]
        assert name not in items, f"{name} is listed twice"
        items[name] = Item(container, int(record["offset"]), int(record["size_bytes"]), name)
        labels[name] = label_of(listed, row)
        stamps[name] = int(record["stamp"])
    return Listed(
        facts=facts,
        items=items,
        labels=labels,
        forms=set(map(Form, listed.rows["form"].tolist())),
        stamps=stamps,
        rejected={each["path"]: (each["kind"], each["reason"]) for each in listed.rejected()},
    )
