"""Finds the file of a folder that a row of labels means, however the row spells its name.

    x.jpg, ./a/../x.jpg      relative to the folder
    images/x.jpg             relative to the folder of the file of labels
    /data/images/x.jpg       absolute
    a\\x.jpg                  as Windows writes it
    x                        without its suffix, as an image's id

The first of them that is in the folder counts, in this order.
"""

import os
import posixpath
from collections.abc import Iterator
from typing import Final

from feeder.process.path_text import encode_name
from feeder.source.label_files.columns import has_image_suffix
from feeder.source.label_files.row_table import NameKeys

_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".JPEG", ".JPG", ".PNG", ".webp", ".tif", ".bmp")


class NameFinder:
    """The names of a folder's files."""

    def __init__(self, folder: str, labels_folder: str, files: NameKeys) -> None:
        """Take absolute paths, as ``path_to_text`` writes them, and the files below ``folder``."""
        self._folder = posixpath.normpath(folder)
        self._bases = [self._folder]
        if posixpath.normpath(labels_folder) != self._folder:
            self._bases.append(posixpath.normpath(labels_folder))
        self._files = files

    def find(self, text: str) -> str | None:
        """Return the name, relative to the folder, of the file that ``text`` means, or None."""
        if not text:
            return None
        try:
            if text in self._files:
                return text
            names = list(self._spellings(text))
            for name in names:
                if name in self._files:
                    return name
            return next((name for name in names[:1] if self._is_file(name)), None)
        except ValueError:  # characters that no name has
            return None

    def is_outside(self, text: str) -> bool:
        """Return whether ``text`` means a file that is not below the folder."""
        return all(self._below(base, text) is None for base in self._bases)

    def _spellings(self, text: str) -> Iterator[str]:
        texts = [text, text.replace("\\", "/")] if "\\" in text else [text]
        suffixes = ("",) if has_image_suffix(text) else ("", *_SUFFIXES)
        for suffix in suffixes:
            for each in texts:
                for base in self._bases:
                    name = self._below(base, each + suffix)
                    if name is not None:
                        yield name

    def _below(self, base: str, text: str) -> str | None:
        path = posixpath.normpath(posixpath.join(base, text))
        inside = f"{self._folder.rstrip('/')}/"
        return path[len(inside) :] if path.startswith(inside) else None

    def _is_file(self, name: str) -> bool:
        """Return whether a file is there that the walk leaves out: a hidden one."""
        return os.path.isfile(os.path.join(encode_name(self._folder), encode_name(name)))
