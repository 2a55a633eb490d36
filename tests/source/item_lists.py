"""Lists of items made by hand, without a source, and what is in a list as plain values."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feeder.plan.labels import LabelChoice
from feeder.process.path_text import decode_name
from feeder.source.listing import ItemListing, ListedItems
from feeder.source.raw_labels import Form, Value, decode_values


def name_of(items: ListedItems, row: int) -> str:
    """Return the name of the item in a row of a list."""
    record = items.rows[row]
    at = int(record["name_at"])
    return decode_name(items.text[at : at + int(record["name_bytes"])])


def label_of(items: ListedItems, row: int) -> Value:
    """Return the label of the item in a row of a list, as the source has it."""
    form, stored = Form(int(items.rows["form"][row])), int(items.rows["label"][row])
    texts = items.listed.texts
    match form:
        case Form.NONE:
            return None
        case Form.NUMBER:
            return stored
        case Form.TEXT:
            return texts[stored]
        case Form.REAL:
            return struct.unpack("<d", struct.pack("<q", stored))[0]  # type: ignore[no-any-return]
    values = decode_values(items.text, stored, form)
    return [texts[value] for value in values] if form == Form.TEXTS else values


def make_list(
    folder: Path,
    items: Sequence[tuple[str, Any]],
    *,
    container: int = 0,
    label_kind: LabelChoice | None = None,
    names: dict[int, str] | None = None,
    base: int = 0,
    by_name: bool = False,
    field: str = "",
    is_declared: bool = False,
    declared: Sequence[str] = (),
) -> ListedItems:
    """Return a list of ``items``, (name, label) each, of 100 bytes one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    with ItemListing(folder, container, label_kind=label_kind) as listing:
        listing.about.base, listing.about.field, listing.about.is_declared = (
            base,
            field,
            is_declared,
        )
        listing.about.by_name |= by_name
        for text in declared:
            listing.declare_class(text)
        for number, (name, label) in enumerate(items):
            listing.add(name, label, offset=100 * number, size_bytes=100)
        for class_number, name in (names or {}).items():
            listing.name_class(class_number, name)
        listed = listing.finish(f"/somewhere/{container}.tar", (1, 1))
    return ListedItems(folder, container, listed)
