"""Reads items at their offsets in containers or in the spilled copies of these."""

import errno
import os
from collections import OrderedDict
from pathlib import Path
from typing import Final

from feeder.process.path_text import path_from_text
from feeder.process.regular_file import open_regular
from feeder.source.item_bytes import FILE_BYTES_MAX, SourceError
from feeder.source.listing import list_path
from feeder.source.source import Item, SourceSpec

_OPEN_MAX: Final = 64


class ContainerFiles:
    """The files of a source's containers, opened on demand; not thread-safe."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        self._spec = spec
        self._work_folder = Path(work_folder)
        self._descriptors: OrderedDict[int, int] = OrderedDict()

    def read_item(self, item: Item) -> bytes:
        """Return the bytes of an item; SourceError (unreadable, empty, too-large, truncated)."""
        if not item.size_bytes:
            raise SourceError("empty", "it has no bytes")
        if item.size_bytes > FILE_BYTES_MAX:
            raise SourceError("too-large", f"{item.size_bytes} bytes, more than {FILE_BYTES_MAX}")
        try:
            data = os.pread(self._open(item.container), item.size_bytes, item.offset)
            while 0 < len(data) < item.size_bytes:
                descriptor = self._descriptors[item.container]
                more = os.pread(descriptor, item.size_bytes - len(data), item.offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise SourceError("unreadable", error.strerror or type(error).__name__) from None
        if len(data) < item.size_bytes:
            raise SourceError("truncated", "its file ends too early")
        return data

    def path(self, container: int) -> Path:
        """Return the container's file."""
        return path_from_text(self._spec.containers[container])

    def close(self) -> None:
        """Close all files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def _open(self, container: int) -> int:
        descriptor = self._descriptors.get(container)
        if descriptor is not None:
            self._descriptors.move_to_end(container)
            return descriptor
        while len(self._descriptors) >= _OPEN_MAX:
            os.close(self._descriptors.popitem(last=False)[1])
        spilled = list_path(self._work_folder, container, "spill")
        path = spilled if spilled.exists() else self.path(container)
        descriptor = self._descriptors[container] = open_regular(path)
        return descriptor
