"""The names of files as 64-bit hashes: which a folder has, which rows of a file of labels repeat.

Tens of millions of names take a few hundred megabytes that way, as a set of texts several
gigabytes. That two of 14 million names share a hash has a probability of 1 in 190,000.
"""

import os
import posixpath
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from feeder.process.path_text import encode_name
from feeder.source.label_files.columns import has_image_suffix

_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".JPEG", ".JPG", ".PNG", ".webp", ".tif", ".bmp")


def hash_name(name: str) -> int:
    """Return the hash of a name; UnicodeEncodeError for what no file can be called."""
    return xxhash.xxh3_64_intdigest(encode_name(name))


class NameKeys:
    """A set of names."""

    def __init__(self, keys: "array[int] | NDArray[np.uint64]") -> None:
        """Take what ``hash_name`` returned, in any order; ``keys`` (of 64 bits) is not kept."""
        self._sorted = array("Q")  # bisect is faster with it than with an array of numpy
        self._sorted.frombytes(np.unique(np.frombuffer(keys, np.uint64)).tobytes())

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The hashes, sorted."""
        return np.frombuffer(self._sorted, np.uint64)

    def __len__(self) -> int:
        return len(self._sorted)

    def find(self, name: str) -> int:
        """Return the place of a name in the order of hashes, -1 if it is not in the set."""
        key = hash_name(name)
        at = bisect_left(self._sorted, key)
        return at if at < len(self._sorted) and self._sorted[at] == key else -1

    def __contains__(self, name: str) -> bool:
        return self.find(name) >= 0


class Repeat(NamedTuple):
    """A file that several rows list."""

    place: int
    """Among all such files."""
    other: int
    """The number of the first row whose label is another than the first one's; 0 for none."""
    rows: int
    """How many rows list it."""


class RowTable:
    """The file, the label and the number of every row, as hashes; complete after ``finish``."""

    def __init__(self) -> None:
        self._files, self._labels, self._numbers = array("Q"), array("Q"), array("I")

    def add(self, file: str, label: object, number: int) -> None:
        self._files.append(hash_name(file))
        self._labels.append(xxhash.xxh3_64_intdigest(repr(label).encode("utf-8", "replace")))
        self._numbers.append(number)

    def finish(self) -> None:
        """Find the files of several rows."""
        self.names = NameKeys(self._files)
        """All files."""
        self._repeated = NameKeys(array("Q"))
        if len(self.names) < len(self._files):  # rarely; doubles the memory
            self._find_repeats()
        self._files = self._labels = self._numbers = array("Q")

    def _find_repeats(self) -> None:
        keys = np.frombuffer(self._files, np.uint64)
        order = np.argsort(keys, kind="stable")
        files, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
        labels = np.frombuffer(self._labels, np.uint64)[order]
        differing = np.flatnonzero(labels != np.repeat(labels[starts], counts))
        groups, first = np.unique(
            np.searchsorted(starts, differing, side="right") - 1, return_index=True
        )
        others = np.zeros(len(starts), np.uint32)
        others[groups] = np.frombuffer(self._numbers, np.uint32)[order][differing[first]]
        is_repeated = counts > 1
        self._repeated = NameKeys(files[is_repeated])
        self._others, self._counts = others[is_repeated], counts[is_repeated]

    @property
    def repeats(self) -> int:
        """The number of files that several rows list."""
        return len(self._repeated)

    def find_repeat(self, file: str) -> Repeat | None:
        """Return which rows list a file if several do."""
        place = self._repeated.find(file) if len(self._repeated) else -1
        if place < 0:
            return None
        return Repeat(place, int(self._others[place]), int(self._counts[place]))


class NameFinder:
    """Finds the file of a folder that a row of labels means, however the row spells its name.

    x.jpg, ./a/../x.jpg      relative to the folder
    images/x.jpg             relative to the folder of the file of labels
    /data/images/x.jpg       absolute
    a\\x.jpg                  as Windows writes it
    x                        without its suffix, as an image's id

    The first of them that is in the folder counts, in this order.
    """

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
