"""Reads items at their offsets in containers or in the spilled copies of these.

A container is compared with its listing after each read, its copy need not be: it was made while
the container was listed.
"""

import errno
import os
from collections import OrderedDict
from pathlib import Path
from typing import Final, NamedTuple

from feeder.process.path_text import path_from_text
from feeder.process.regular_file import open_regular
from feeder.source.item_bytes import FILE_BYTES_MAX, SourceError, check_listed
from feeder.source.listing import list_path
from feeder.source.source import Item, SourceSpec

_OPEN_MAX: Final = 64


class ContainerFiles:
    """The files of a source's containers, opened on demand; not thread-safe."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        self._spec = spec
        self._work_folder = Path(work_folder)
        self._open_files: OrderedDict[int, _OpenFile] = OrderedDict()

    def read_item(self, item: Item) -> bytes:
        """Return the bytes of an item; SourceError (unreadable, empty, too-large, truncated).

        Raises SourceChangedError if the container is not the one that was listed.
        """
        if not item.size_bytes:
            raise SourceError("empty", "it has no bytes")
        if item.size_bytes > FILE_BYTES_MAX:
            raise SourceError("too-large", f"{item.size_bytes} bytes, more than {FILE_BYTES_MAX}")
        try:
            file = self._open(item.container)
            data = os.pread(file.descriptor, item.size_bytes, item.offset)
            while 0 < len(data) < item.size_bytes:
                at = len(data)
                more = os.pread(file.descriptor, item.size_bytes - at, item.offset + at)
                if not more:
                    break
                data += more
            if not file.is_copy:
                check_listed(file.path, item.stamp, file.descriptor)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            check_listed(os.fsencode(self.path(item.container)), item.stamp)
            raise SourceError("unreadable", error.strerror or type(error).__name__) from None
        if len(data) < item.size_bytes:
            raise SourceError("truncated", "its file ends too early")
        return data

    def path(self, container: int) -> Path:
        """Return the container's file."""
        return path_from_text(self._spec.containers[container])

    def close(self) -> None:
        """Close all files."""
        while self._open_files:
            os.close(self._open_files.popitem()[1].descriptor)

    def _open(self, container: int) -> "_OpenFile":
        file = self._open_files.get(container)
        if file is not None:
            self._open_files.move_to_end(container)
            return file
        while len(self._open_files) >= _OPEN_MAX:
            os.close(self._open_files.popitem(last=False)[1].descriptor)
        copy = list_path(self._work_folder, container, "spill")
        is_copy = copy.exists()
        path = os.fsencode(copy if is_copy else self.path(container))
        file = self._open_files[container] = _OpenFile(open_regular(path), path, is_copy)
        return file


class _OpenFile(NamedTuple):
    descriptor: int
    path: bytes
    is_copy: bool
