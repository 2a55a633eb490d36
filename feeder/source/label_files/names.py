"""The names of files as 64-bit hashes: which a folder has, whatever rows of labels call them.

Tens of millions of names take a few hundred megabytes that way, as a set of texts several
gigabytes. That two of 14 million names share a hash has a probability of 1 in 190,000.
"""

import os
import posixpath
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from feeder.process.path_text import encode_name
from feeder.source.label_files.columns import has_image_suffix
from feeder.source.location.storage import is_url, stamp_path

_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".JPEG", ".JPG", ".PNG", ".webp", ".tif", ".bmp")


def hash_name(name: str) -> int:
    """Return the hash of a name; UnicodeEncodeError for what no file can be called."""
    return xxhash.xxh3_64_intdigest(encode_name(name))


class NameKeys:
    """A set of names."""

    def __init__(
        self, keys: "array[int] | NDArray[np.uint64]", states: "array[int] | None" = None
    ) -> None:
        """Take what ``hash_name`` returned, in any order; ``keys`` (of 64 bits) is not kept.

        ``states`` has two numbers for each of them, if any.
        """
        self._sorted = array("Q")  # bisect is faster with it than with an array of numpy
        self._states = np.empty((0, 2), np.uint64)
        if states:
            unique, first = np.unique(np.frombuffer(keys, np.uint64), return_index=True)
            self._states = np.frombuffer(states, np.uint64).reshape(-1, 2)[first]
        else:
            unique = np.unique(np.frombuffer(keys, np.uint64))
        self._sorted.frombytes(unique.tobytes())

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The hashes, sorted."""
        return np.frombuffer(self._sorted, np.uint64)

    def __len__(self) -> int:
        return len(self._sorted)

    def __contains__(self, name: str) -> bool:
        return self._find(name) >= 0

    def state_of(self, name: str) -> tuple[int, int] | None:
        """Return the two numbers of a name; None where there are none."""
        at = self._find(name) if len(self._states) else -1
        return (int(self._states[at, 0]), int(self._states[at, 1])) if at >= 0 else None

    def _find(self, name: str) -> int:
        key = hash_name(name)
        at = bisect_left(self._sorted, key)
        return at if at < len(self._sorted) and self._sorted[at] == key else -1


class NameFinder:
    """Finds the file of a folder that a row of labels means, however the row spells its name.

    x.jpg, ./a/../x.jpg      relative to the folder
    images/x.jpg             relative to the folder of the file of labels
    /data/images/x.jpg       absolute; so are URLs
    a\\x.jpg                  as Windows writes it
    x                        without its suffix, as an image's id

    The first of them that is in the folder counts, in this order.
    """

    def __init__(self, folder: str, labels_folder: str, files: NameKeys) -> None:
        """Take absolute paths, as ``path_to_text`` writes them, and the files below ``folder``."""
        self._root = folder
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
        path = posixpath.normpath(text if is_url(text) else posixpath.join(base, text))
        inside = f"{self._folder.rstrip('/')}/"
        return path[len(inside) :] if path.startswith(inside) else None

    def _is_file(self, name: str) -> bool:
        """Return whether a file is there that the walk leaves out: a hidden one."""
        if len(self._files) and "/." not in f"/{name}":
            return False
        path = encode_name(os.path.join(self._root, name))
        return stamp_path(path) > 0 if is_url(path) else os.path.isfile(path)
