"""Files below a folder that is a source's one container: all but hidden ones, through links.

Names are the file system's bytes, decoded as UTF-8 whatever the locale: the same source gives the
same dataset everywhere. The files of a folder come in the file system's order and are not kept:
a folder may hold millions.
"""

import os
from collections.abc import Iterator
from typing import Final

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import decode_name, encode_name, printable
from feeder.source.item_bytes import read_source
from feeder.source.listing import ItemListing
from feeder.source.location.storage import is_folder, scan_folder, show_path, stamp_status
from feeder.source.source import Item, SourceSpec

_DEPTH_MAX: Final = 64


class LooseFiles:
    """What sources of loose files have in common."""

    def __init__(self, spec: SourceSpec) -> None:
        """Raise ConfigError for several containers."""
        if len(spec.containers) > 1:
            raise ConfigError(
                f"{printable(spec.location)} is {len(spec.containers):,} files: --source "
                f"{spec.kind} is for one folder"
            )
        self._spec = spec
        self._root = encode_name(spec.containers[0])

    def path(self, name: str) -> bytes:
        """Return the path of the file called ``name``, or of the folder; "" is the whole one."""
        return os.path.join(self._root, encode_name(name)) if name else self._root

    def walk(
        self, name: str, listing: ItemListing, *, above: tuple[tuple[int, int], ...] = ()
    ) -> Iterator[str]:
        """Yield the name, relative to the container, of each file below its folder ``name``.

        Names have '/' between folders. Hidden entries are counted in ``listing``. ``above`` are the
        folders above it, by device and inode. Raises DatasetError for a folder that cannot be
        listed or links to one above it.
        """
        path = self.path(name)
        try:
            status = os.stat(path)
        except OSError as error:
            raise DatasetError(
                f"folder {show_path(path)} cannot be listed: {error.strerror}"
            ) from error
        identity = status.st_dev, status.st_ino
        if identity in above or len(above) >= _DEPTH_MAX:
            raise DatasetError(f"{show_path(path)} links to a folder above it: remove the link")
        folders: list[str] = []
        for entry in scan_folder(path, "folder"):
            entry_name = f"{name}/{decode_name(entry.name)}" if name else decode_name(entry.name)
            if entry.name.startswith(b"."):
                listing.about.hidden += 1
            elif is_folder(entry):
                folders.append(entry_name)
            else:
                yield entry_name
        for folder in sorted(folders):
            yield from self.walk(folder, listing, above=(*above, identity))

    def add(self, name: str, label: object, listing: ItemListing) -> None:
        """Add a file to the listing; one that cannot be looked at is packing's to quarantine."""
        try:
            status = os.stat(self.path(name))
        except OSError:  # such as a link that leads nowhere
            listing.add(name, label, size_bytes=0)
        else:
            listing.add(name, label, size_bytes=status.st_size, stamp=stamp_status(status))

    def read_item(self, item: Item) -> bytes:
        """Return the bytes of a file; SourceError (unreadable, empty or too-large)."""
        return read_source(self.path(item.name), listed=item.stamp)

    def close(self) -> None:
        """Close nothing: no file stays open."""
