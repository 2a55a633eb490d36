"""Selections for tests, of datasets that exist only as their numbers."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from feeder.dataset.selection import CHECKSUM_BYTES, PREAMBLE, Member, Selection
from feeder.dataset.selection_writer import DrawTables, encode_selection
from feeder.plan.labels import INDEX_LABELS, LabelSpec

CLASSES = ("cat", "dog")


def member(number: int, samples: int, **fields: object) -> Member:
    """A dataset of so many samples of 1000 bytes."""
    known: dict[str, object] = {
        "name": f"m{number}",
        "content": f"{number:032x}",
        "samples": samples,
        "chosen": 1,
        "size_bytes": 1000 * samples,
        "classes": CLASSES,
    }
    return Member(**(known | fields))  # type: ignore[arg-type]


def selection_bytes(
    ids: Sequence[Sequence[int] | NDArray[np.int64]],
    members: Sequence[Member] | None = None,
    *,
    classes: Sequence[str] = CLASSES,
    labels: LabelSpec = INDEX_LABELS,
    own_labels: Sequence[Sequence[int]] | None = None,
    draws: DrawTables | None = None,
    options: dict[str, str] | None = None,
) -> bytes:
    """The file of a selection of these ids, by member; 1000 samples more than needed in each."""
    arrays = [np.array(own, np.int64) for own in ids]
    if members is None:
        members = [
            member(number, int(own[-1]) + 1000 if len(own) else 1)
            for number, own in enumerate(arrays)
        ]
    own_arrays = None
    if own_labels is not None:
        own_arrays = [np.array(own, np.int32) for own in own_labels]
    parts = encode_selection(
        "test",
        members,
        arrays,
        classes=classes,
        labels=labels,
        own_labels=own_arrays,
        draws=draws,
        options=options,
    )
    return b"".join(parts)


def draw_tables(
    columns: Sequence[Sequence[Sequence[int]]],
    *,
    epoch_samples: int = 100,
    epochs: tuple[int, ...] = (0,),
    shares: Sequence[int] = (1,),
    components: Sequence[Sequence[int]] | None = None,
) -> DrawTables:
    """Weights by column and member, and the number of each sample's share."""
    return DrawTables(
        epoch_samples=epoch_samples,
        epochs=epochs,
        columns=[[np.array(own, np.uint32) for own in column] for column in columns],
        shares=shares,
        components=components and [np.array(own, np.int64) for own in components],
    )


def write_selection(path: Path, data: bytes) -> Selection:
    """Write the file and open it."""
    path.write_bytes(data)
    return Selection.open(path)


def resealed(data: bytes) -> bytes:
    """The bytes with a checksum that fits."""
    state = xxhash.xxh3_64(data[: PREAMBLE.size - CHECKSUM_BYTES])
    state.update(data[PREAMBLE.size :])
    return (
        data[: PREAMBLE.size - CHECKSUM_BYTES]
        + struct.pack("<Q", state.intdigest())
        + (data[PREAMBLE.size :])
    )
