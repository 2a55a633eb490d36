"""Samples that ``feeder.pack_samples`` was given: a spool in the work folder holds them.

    list-00000.*   no items; the samples that this call left out because of their labels
    list-00003.*   up to 65,536 samples in the order given, their bytes in list-00003.spill

Packing shuffles, but an iterable gives its samples once and in one order, so all of them are copied
first. ``feeder.pack.spool`` writes these lists; a list is complete, and kept, or does not exist.

A later call recognises what is there by two hashes, 17 bytes of memory a sample:

    stem     of the key without its suffix, so of the name to which the sample unpacks
    digest   of key, label and bytes, which together are the sample; the stamp of its ITEM

So samples may come in another order, and one that has changed is found without reading it. Keys are
not compared themselves: of 14 million samples two have equal stem hashes with a probability of 5 in
a million, and would then be refused as if their names clashed.
"""

import os
from collections.abc import Mapping
from typing import Final

import numpy as np
import xxhash

from feeder.source.listing import ListedItems

LOCATION: Final = "pack_samples"
"""What messages call the source, and each of its containers."""


def stem_hash(stored_key: bytes) -> int:
    """Return the hash of a key, as shards store it, without its suffix."""
    return xxhash.xxh3_64_intdigest(os.path.splitext(stored_key)[0])


def sample_digest(stored_key: bytes, label: object, data: bytes | memoryview) -> int:
    """Return the hash of a sample; ``label`` is its form and its value."""
    described = b"%s\0%s" % (stored_key, ascii(label).encode("ascii"))
    return xxhash.xxh3_64_intdigest(data, seed=xxhash.xxh3_64_intdigest(described))


class SampleKeys:
    """The samples in the complete containers of a spool, and which of them were given again."""

    def __init__(self) -> None:
        self._stems = np.empty(0, np.uint64)  # sorted; the others are parallel to it
        self._digests = np.empty(0, np.uint64)
        self._given = np.empty(0, np.bool_)

    def add_listed(self, items: ListedItems) -> None:
        """Add a container that an earlier call completed: samples not given yet."""
        fields = items.rows[["name_at", "name_bytes", "stamp"]].tolist()
        self.add({stem_hash(items.text[at : at + n]): stamp for at, n, stamp in fields}, False)

    def add(self, digests: Mapping[int, int], given: bool) -> None:
        """Add samples: their digests by their stems."""
        stems = np.fromiter(digests.keys(), np.uint64, len(digests))
        values = np.fromiter(digests.values(), np.uint64, len(digests))
        joined = np.concatenate((self._stems, stems))
        order = np.argsort(joined, kind="stable")  # a merge of runs, and these are nearly two
        self._stems = joined[order]
        self._digests = np.concatenate((self._digests, values))[order]
        self._given = np.concatenate((self._given, np.full(len(stems), given)))[order]

    def find(self, stem: int) -> int:
        """Return the place of a stem for the other methods; -1 where there is none."""
        wanted = np.uint64(stem)  # a Python integer would make numpy compare as floats
        at = int(np.searchsorted(self._stems, wanted))
        return at if at < len(self._stems) and self._stems[at] == wanted else -1

    def take(self, at: int, digest: int) -> bool:
        """Mark a sample as given; false if it was before, or is not the one with ``digest``."""
        if self._given[at] or self._digests[at] != np.uint64(digest):
            return False
        self._given[at] = True
        return True

    def was_given(self, at: int) -> bool:
        """Return whether a sample was given in this call."""
        return bool(self._given[at])

    def not_given(self) -> tuple[int, int]:
        """Return how many samples were not given in this call, and the stem of one of them."""
        missing = np.flatnonzero(~self._given)
        return len(missing), int(self._stems[missing[0]]) if len(missing) else 0
