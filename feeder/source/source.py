"""The interface of all kinds of source, and the description that opens one in any process.

    list_items(container, listing)   adds each item of a container: name, label, where its bytes are
    read_item(item)                  returns the bytes of an item that was listed

A *container* is one file of the source: a tar shard, a TFRecord, a Parquet file. Sources of loose
files have one container, their folder. Containers are listed independently, by several processes.
An item's bytes can be read in any order, because packing shuffles; a container that cannot seek is
copied to the work folder while it is listed (``ItemListing.spill``).
"""

from typing import Final, Literal, NamedTuple, Protocol, get_args

import msgspec

from feeder.plan.labels import LabelChoice, Uncertain
from feeder.source.listing import ItemListing

SourceKind = Literal[
    "class-folder",
    "labelled-folder",
    "webdataset",
    "tfrecord",
    "parquet",
    "imagenet-train",
    "imagenet-val",
    "samples",
]
KINDS: Final[tuple[str, ...]] = get_args(SourceKind)
LOOSE_KINDS: Final = ("class-folder", "labelled-folder")
"""Sources of loose files, whose one container is a folder."""


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a source is and how to read it; paths are absolute, as ``path_to_text`` writes them."""

    kind: SourceKind
    location: str
    """As the user gave it, for messages."""
    containers: tuple[str, ...]
    image: str = ""
    """The field, column or suffix that holds the image; empty: found by looking."""
    label: str = ""
    """The same of the label."""
    label_kind: LabelChoice | None = None
    """None: what all labels suggest."""
    uncertain: Uncertain | Literal[""] = ""
    """What -1 and a missing value are in rows of 0 and 1; empty: an error."""
    label_base: int | None = None
    """The number of the first class; None: the kind's own (1 in ImageNet's TFRecords)."""
    labels_file: str = ""
    """A file with the labels, where they are apart from the images."""
    class_names_file: str = ""
    """A file with the name of each class, one a line, in the order of their numbers."""
    may_lack_images: bool = False
    """Whether a class folder may be empty, because the classes are another dataset's."""
    split: str = ""
    """The split to take rows of; empty: all rows, or there is only one split."""
    all_splits: bool = False
    """Whether what looks like several splits is to be taken as one."""
    notes: tuple[str, ...] = ()
    """Lines for the user, about what was chosen."""


class Item(NamedTuple):
    """An item as it was listed."""

    container: int
    offset: int
    """Of its bytes, or of the record that holds them, in the container or in its spilled copy."""
    size_bytes: int
    name: str
    stamp: int | None = None
    """Of the file that it is read from, as that was listed; None: any."""


class Source(Protocol):
    """One kind of source; for one thread of one process."""

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add all items of a container to ``listing``.

        A fault of one item is rejected there, for the quarantine list. Raises DatasetError for a
        container that is damaged or of another kind, ConfigError for options that do not fit it.
        """

    def read_item(self, item: Item) -> bytes:
        """Return the bytes of an item's image; SourceError if they cannot be read.

        Raises SourceChangedError if their file is not the one that was listed.
        """

    def close(self) -> None:
        """Close what is open; idempotent."""


def open_source(spec: SourceSpec, work_folder: str) -> Source:
    """Return the source of ``spec``; ``work_folder`` holds or gets its spilled copies.

    Each kind is imported on demand: some need libraries that others do not.
    """
    match spec.kind:
        case "class-folder":
            from feeder.source.class_folder import ClassFolder

            return ClassFolder(spec)
        case "labelled-folder":
            from feeder.source.labelled_folder import LabelledFolder

            return LabelledFolder(spec)
        case "webdataset":
            from feeder.source.webdataset import WebDataset

            return WebDataset(spec, work_folder)
        case "tfrecord":
            from feeder.source.tfrecord import TFRecords

            return TFRecords(spec, work_folder)
        case "parquet":
            from feeder.source.parquet import ParquetFiles

            return ParquetFiles(spec, work_folder)
        case "imagenet-train":
            from feeder.source.imagenet import ImageNetTraining

            return ImageNetTraining(spec, work_folder)
        case "imagenet-val":
            from feeder.source.imagenet import ImageNetValidation

            return ImageNetValidation(spec, work_folder)
        case "samples":
            from feeder.source.samples import SpooledSamples

            return SpooledSamples(spec, work_folder)
