"""Lists of items made by hand, without a source."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feeder.plan.labels import LabelKind
from feeder.process.path_text import decode_name
from feeder.source.listing import ItemListing, ListedItems


def name_of(items: ListedItems, row: int) -> str:
    """Return the name of the item in a row of a list."""
    record = items.rows[row]
    return decode_name(items.text.name(int(record["name_at"]), int(record["name_bytes"])))


def make_list(
    folder: Path,
    items: Sequence[tuple[str, Any]],
    *,
    container: int = 0,
    label_kind: LabelKind | None = None,
    names: dict[int, str] | None = None,
) -> ListedItems:
    """Return a list of ``items``, (name, label) each, of 100 bytes one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    with ItemListing(folder, container, label_kind=label_kind) as listing:
        for number, (name, label) in enumerate(items):
            listing.add(name, label, offset=100 * number, size_bytes=100)
        for class_number, name in (names or {}).items():
            listing.name_class(class_number, name)
        listed = listing.finish(f"/somewhere/{container}.tar", (1, 1))
    return ListedItems(folder, container, listed)
