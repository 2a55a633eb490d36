"""A folder of classes: each folder in it is a class, and holds the images of that class.

    SRC/class/…/file     all files below a class folder belong to its class

Files count whatever their suffix; names that begin with a dot are left out and counted. An item's
label is the name of its class folder.
"""

import os
from collections.abc import Iterator

from feeder.errors import DatasetError
from feeder.process.path_text import decode_name, encode_name
from feeder.source.folder_walk import (
    LooseFiles,
    is_folder,
    scan_folder,
    show_path,
    stat_file,
    walk_files,
)
from feeder.source.item_bytes import sniff_file
from feeder.source.listing import ItemListing
from feeder.source.names import stored_path
from feeder.source.source import SourceSpec


class ClassFolder(LooseFiles):
    """The images below class folders; its one container is the folder."""

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(spec)
        self._may_lack_images = spec.may_lack_images

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add every file below the class folders; the class folders come sorted, files do not.

        Raises DatasetError for a missing or empty source, a file beside the class folders or,
        unless the spec allows it, a class without images; ConfigError for an image that would
        unpack to the name of a folder.
        """
        listing.by_name = True
        classes = sorted(self._find_classes(listing))
        if not classes:
            raise DatasetError(
                f"{show_path(self._root)} holds no class folders: put images into a folder per "
                "class"
            )
        for name in classes:
            self._list_class(name, listing)
        if not listing.items:
            raise DatasetError(
                f"{show_path(self._root)} holds no images: put some into the class folders"
            )

    def _find_classes(self, listing: ItemListing) -> Iterator[str]:
        stray: bytes | None = None
        for entry in scan_folder(self._root, "source folder"):
            if entry.name.startswith(b"."):
                listing.hidden += 1
            elif is_folder(entry):
                yield decode_name(entry.name)
            else:
                stray = entry.name if stray is None else min(stray, entry.name)
        if stray is not None:
            raise DatasetError(
                f"{show_path(os.path.join(self._root, stray))} is a file where a class folder "
                "should be: move it into a class folder or out of the source"
            )

    def _list_class(self, name: str, listing: ItemListing) -> None:
        listing.declare_class(name)
        files = 0
        has_image = False
        for file in walk_files(self._root, name, listing):
            files += 1
            path = stored_path(self._root, encode_name(file))
            has_image = has_image or sniff_file(path) is not None
            status = stat_file(path)
            listing.add(file, name, size_bytes=status.size_bytes, stamp=status.stamp)
        if has_image or (not files and self._may_lack_images):
            return
        others = f", only {files} other file{'s' * (files > 1)}" if files else ""
        raise DatasetError(
            f"class folder {show_path(stored_path(self._root, encode_name(name)))} holds no images"
            f"{others}: add some or remove the folder"
        )
