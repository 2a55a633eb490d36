"""What differs between two datasets or selections, by the names and the content of their samples.

    each side ─► a row a sample: hash of its name, its content checksum, hash of its label
              ─► pairs of the same name: first what is equal, then the same content, then the rest
              ─► in one only: added, removed; in both: changed, relabelled

Names are compared by 128 bits of a hash, labels by the names of their classes. Memory is 48 bytes a
sample and the index of a shard. Names are read again for those samples that are to be shown.
"""

from typing import Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.dataset.selected import SelectedDataset
from feeder.plan.labels import LabelSpec
from feeder.process.path_text import encode_name

_ROW: Final = np.dtype(
    [
        ("high", "<u8"),  # of the name's hash
        ("low", "<u8"),
        ("content", "<u8"),
        ("label", "<u8"),
        ("id", "<i8"),  # in its dataset or selection
    ]
)
_PAIRED_BY: Final = (
    ["high", "low", "content", "label"],
    ["high", "low", "content"],
    ["high", "low"],
)
"""What samples have in common that are paired, first and last: several may have one name."""

Samples = Dataset | SelectedDataset


class Changes(NamedTuple):
    """The ids of samples (n,), ascending: those in ``new`` but for ``removed``, which are in
    ``old``. A sample may be both changed and relabelled."""

    added: NDArray[np.int64]
    removed: NDArray[np.int64]
    changed: NDArray[np.int64]
    relabelled: NDArray[np.int64]
    same: int
    """How many samples are in both, neither changed nor relabelled."""


def find_changes(old: Samples, new: Samples) -> Changes:
    """Return how ``new`` differs from ``old``; errors are those of shards that cannot be read."""
    rows = [_read_rows(old), _read_rows(new)]
    both = np.concatenate(rows)
    singles = np.arange(len(both))
    befores, afters = [], []
    for fields in _PAIRED_BY:
        old_one, new_one = _pair(both, singles, len(rows[0]), fields)
        befores.append(old_one)
        afters.append(new_one)
        is_single = np.zeros(len(both), np.bool_)
        is_single[singles] = True
        is_single[old_one] = is_single[new_one] = False
        singles = np.flatnonzero(is_single)
    before, after = np.concatenate(befores), np.concatenate(afters)
    is_changed = both["content"][before] != both["content"][after]
    is_relabelled = both["label"][before] != both["label"][after]
    return Changes(
        added=np.sort(both["id"][singles[singles >= len(rows[0])]]),
        removed=np.sort(both["id"][singles[singles < len(rows[0])]]),
        changed=np.sort(both["id"][after[is_changed]]),
        relabelled=np.sort(both["id"][after[is_relabelled]]),
        same=int(np.count_nonzero(~(is_changed | is_relabelled))),
    )


def _read_rows(samples: Samples) -> NDArray[np.void]:
    """Return a row of dtype _ROW for each sample, in the order of ids."""
    rows = np.empty(samples.layout.ids, _ROW)
    rows["id"] = np.arange(len(rows))
    if isinstance(samples, Dataset):
        _read_member(samples, None, rows)
    else:
        selection = samples.selection
        classes = _hash_all(selection.classes)
        for number in range(len(selection.members)):
            places, ids = selection.rows_of(number)
            part = rows[places]
            _read_member(samples.member(number), ids, part)
            if selection.own_labels is not None:
                part["label"] = classes[selection.own_labels[places]]
            rows[places] = part
    return rows


def _pair(
    rows: NDArray[np.void], among: NDArray[np.int64], new_from: int, fields: list[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pair rows, of ``among``, before ``new_from`` with rows after it that are equal in ``fields``:
    of several in the order of ids. Returns the positions of both."""
    order = among[np.lexsort([rows[name][among] for name in reversed(fields)])]
    keys, is_new = rows[fields][order], order >= new_from
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (keys[1:] != keys[:-1]) | (is_new[1:] != is_new[:-1])
    # lexsort is stable: within a key the old ones come first, so a run of them meets the new ones.
    starts = np.flatnonzero(is_first)
    lengths = np.diff(starts, append=len(order))
    meets = np.zeros(len(starts), np.bool_)
    meets[:-1] = (keys[starts[1:]] == keys[starts[:-1]]) & is_new[starts[1:]]
    runs = np.flatnonzero(meets)
    counts = np.minimum(lengths[runs], lengths[runs + 1])
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    old_at = np.repeat(starts[runs], counts) + offsets
    new_at = np.repeat(starts[runs + 1], counts) + offsets
    return order[old_at], order[new_at]


def _read_member(dataset: Dataset, ids: NDArray[np.int64] | None, out: NDArray[np.void]) -> None:
    """Fill the rows of a dataset's samples: of ``ids``, which ascend, or of all."""
    classes = _hash_all(dataset.classes)
    for shard in range(dataset.layout.shards):
        span = dataset.layout.rows(shard)
        chosen = np.arange(span.start, span.stop)
        to = span
        if ids is not None:
            first, end = np.searchsorted(ids, [span.start, span.stop]).tolist()
            chosen, to = ids[first:end], slice(first, end)
        if not len(chosen):
            continue
        index = dataset.open_shard(shard).prove_index()
        part = out[to]
        records = index.records[chosen - span.start]
        names = [index.name(record) for record in records]
        hashes = [xxhash.xxh3_128_intdigest(name) for name in names]
        part["high"] = [digest >> 64 for digest in hashes]
        part["low"] = [digest & (2**64 - 1) for digest in hashes]
        part["content"] = records["content_checksum"]
        label_rows = index.label_rows[chosen - span.start]
        part["label"] = _hash_labels(dataset.labels, classes, records["label"], label_rows)


def _hash_all(classes: tuple[str, ...]) -> NDArray[np.uint64]:
    return np.array([xxhash.xxh3_64_intdigest(encode_name(name)) for name in classes], np.uint64)


def _hash_labels(
    labels: LabelSpec,
    classes: NDArray[np.uint64],
    numbers: NDArray[np.uint32],
    label_rows: NDArray[np.uint8],
) -> NDArray[np.uint64]:
    """Return a hash of each sample's label, by the names of its classes."""
    match labels.kind:
        case "index":
            return classes[numbers]
        case "multi":  # the sum of hashes does not depend on the order of classes
            bits = np.unpackbits(label_rows, axis=1, count=labels.width, bitorder="little")
            return bits.astype(np.uint64) @ classes
        case "float":
            hashes = [xxhash.xxh3_64_intdigest(row.tobytes()) for row in label_rows]
            return np.array(hashes, np.uint64)
        case "none":
            return np.zeros(len(numbers), np.uint64)
