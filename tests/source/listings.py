"""Sources written, listed and read in this process, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import FeederError
from feeder.process.path_text import path_to_text
from feeder.source.listing import ItemListing, ListedContainer, ListedItems
from feeder.source.raw_labels import Form, Value
from feeder.source.source import Item, SourceSpec, open_source
from tests.source.item_lists import label_of, name_of
from tests.support.sources import encoded, image

GOLDEN = Path(__file__).with_name("golden")
"""Files that the formats' own writers made."""
JPEG = encoded(image())


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

    @property
    def faults(self) -> dict[str, str]:
        return {name: kind for name, (kind, _) in self.rejected.items()}


def put(root: Path, files: Mapping[str, bytes | str] | str) -> Path:
    """Write files below ``root``, or a JPEG as each of the names in a text; return ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    for name, data in (
        dict.fromkeys(files.split(), JPEG) if isinstance(files, str) else files
    ).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return root


def spec_of(kind: str, *paths: Path, **options: Any) -> SourceSpec:
    containers = tuple(map(path_to_text, paths))
    return SourceSpec(kind=kind, location=containers[0], containers=containers, **options)


def list_container(spec: SourceSpec, work_folder: Path, container: int = 0) -> Listed:
    """List one container of ``spec`` as ``feeder pack`` does."""
    work_folder.mkdir(parents=True, exist_ok=True)
    source = open_source(spec, str(work_folder))
    try:
        with ItemListing(work_folder, container, label_kind=spec.label_kind) as listing:
            source.list_items(container, listing)
            facts = listing.finish(spec.containers[container], (0, 0))
    finally:
        source.close()
    listed = ListedItems(work_folder, container, facts)
    names = [name_of(listed, row) for row in range(facts.items)]
    assert len(set(names)) == len(names), "a name is listed twice"
    rows = dict(zip(names, listed.rows, strict=True))
    return Listed(
        facts=facts,
        items={
            name: Item(container, int(row["offset"]), int(row["size_bytes"]), name)
            for name, row in rows.items()
        },
        labels={name: label_of(listed, row) for row, name in enumerate(names)},
        forms=set(map(Form, listed.rows["form"].tolist())),
        stamps={name: int(row["stamp"]) for name, row in rows.items()},
        rejected={each["path"]: (each["kind"], each["reason"]) for each in listed.rejected()},
    )


def list_one(kind: str, path: Path, **options: Any) -> Listed:
    """List the only container of a source, with a work folder beside it."""
    return list_container(spec_of(kind, path, **options), path.parent / "work")


def check_refused(kind: str, path: Path, reason: str, **options: Any) -> None:
    """Check that a file is an error of one line that names it, and that no list remains."""
    with pytest.raises(FeederError) as caught:
        list_one(kind, path, **options)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()
    assert not (path.parent / "work" / "list-00000.json").exists()


def read_items(spec: SourceSpec, listed: Listed, work_folder: Path) -> dict[str, bytes]:
    """Return the bytes of all items of a container."""
    source = open_source(spec, str(work_folder))
    try:
        return {name: source.read_item(item) for name, item in listed.items.items()}
    finally:
        source.close()


def read_one(kind: str, path: Path, listed: Listed, **options: Any) -> list[bytes]:
    """Return the bytes of what ``list_one`` listed."""
    spec = spec_of(kind, path, **options)
    return list(read_items(spec, listed, path.parent / "work").values())
