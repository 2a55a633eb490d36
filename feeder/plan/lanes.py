"""Lanes, pieces and the working set: what batches are drawn from, and what feeders own and read.

    packed order    0 ……………………………………………………………………………… samples - 1
    lanes           [ lane 0: 79 batches + 1 ][ lane 1: 78 batches ][ lane 2: 78 batches + 1 ] …
    pieces          [ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ][ ] …

A lane is a range of the packed order, which packing has shuffled: every lane is a fair sample of
the dataset. It holds whole batches of ``order_batch_size`` and its share of the samples that remain
when the whole dataset is cut into batches. So fewer than ``order_batch_size`` samples are left over
in all lanes together, whatever the number of lanes, and lanes need not follow the shards' borders:
packing fixes the shards only.

A piece is what is read at once: samples k · piece … of the packed order, a power of two of them and
some 8 MiB. The working set is the samples whose pieces are in use or read ahead at a time, over all
lanes together. Where it is not all of the dataset, ``feeder.plan.window`` draws a lane's batches
from a rolling window of its pieces.

Invariant: the lanes hold every sample once; their sizes differ by one batch and one sample at most,
and no size needs memory: all is closed arithmetic.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError

LANES_MAX: Final = 1024
"""Most lanes that are chosen by size: four for each of 256 feeders."""

LANES_LIMIT: Final = 4096
"""Most lanes that a recipe may ask for."""

BATCHES_A_LANE: Final = 78
"""Fewest batches of a shuffled lane that is chosen by size. A batch is drawn from one lane: with
eight epochs of ImageNet, an image meets 0.96 of the distinct others that a global shuffle gives it
where lanes have 78 batches, 0.72 where they have 8."""

UNSHUFFLED_BATCHES_A_LANE: Final = 8
"""The same where samples keep the packed order, so that lanes mix nothing."""

GLOBAL_SAMPLES: Final = 20_000
"""A smaller dataset is shuffled as a whole, in one lane."""

PIECE_BYTES: Final = 8 << 20

LANE_BYTES: Final = 256 << 20
"""Working set of a lane where the recipe leaves it open: 16 GiB for 64 lanes, or for fewer."""

_DEFAULT_LANES: Final = 64

_PIECES_MIN: Final = 16
"""Fewest pieces in the window of a lane that is chosen by size."""


class OrderShape(NamedTuple):
    """What decides the order of an epoch, besides its samples, batches, seed and number."""

    lanes: int
    working_set: int
    """Samples; all of the dataset's where lanes are permuted whole."""
    piece: int
    """Samples, a power of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLayout:
    """How samples are spread over lanes; lane l begins at ``starts(l)`` of the packed order."""

    samples: int
    lanes: int
    order_batch_size: int

    def starts(self, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample id that each of ``lanes`` begins with, int64 (n,); 0 .. lanes each."""
        batches, rest = divmod(self.samples, self.order_batch_size)
        return lanes * batches // self.lanes * self.order_batch_size + lanes * rest // self.lanes

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of samples in each lane, int64 (lanes,)."""
        return np.diff(self.starts(np.arange(self.lanes + 1, dtype=np.int64)))


def resolve_shape(
    samples: int,
    *,
    order_batch_size: int,
    shuffle: bool,
    lanes: int = 0,
    working_set: int | tuple[int, int] = 0,
    size_bytes: int = 0,
) -> OrderShape:
    """Return the shape that a recipe's fields stand for, alike on every machine.

    ``lanes`` 0 means by size: a power of two, so that feeders of most numbers own equal shares.
    ``working_set`` is in bytes, which needs ``size_bytes``, those of all shards; 0 for the default;
    or the samples and samples a piece that were resolved before. Raises ConfigError where a lane
    would hold no whole batch, or its part of the working set not enough for two.
    """
    batches = samples // order_batch_size
    if lanes > max(1, batches):
        raise ConfigError(
            f"recipe: lanes {lanes} is more than the {batches} whole batches of {order_batch_size} "
            f"in {samples} samples: use at most {max(1, batches)}, or 0 to choose by size"
        )
    if isinstance(working_set, tuple):
        held, piece = min(working_set[0], samples), working_set[1]
    else:
        held = samples
        if working_set or samples >= GLOBAL_SAMPLES:
            wanted_bytes = working_set or LANE_BYTES * max(_DEFAULT_LANES, lanes)
            held = min(samples, wanted_bytes * samples // max(1, size_bytes))
        piece = piece_samples(samples, size_bytes)
    if not shuffle:
        most = lanes or _choose(batches // UNSHUFFLED_BATCHES_A_LANE)
        return OrderShape(most, samples, piece)
    least = reserved_samples(order_batch_size, piece) + 2 * piece  # a window of one piece, or two
    if held < least * max(1, lanes) and working_set == 0:
        held = min(samples, least * max(1, lanes))
    if lanes == 0 and samples < GLOBAL_SAMPLES:
        lanes = 1
    elif lanes == 0:
        lanes = _choose(batches // BATCHES_A_LANE)
        if held < samples:
            lanes = min(lanes, _choose(held // (least + _PIECES_MIN * piece)))
    if held < min(samples, least * lanes):
        needed = f"{least * lanes} samples"
        if not isinstance(working_set, tuple):
            needed = f"{-(-least * lanes * size_bytes // samples)} bytes"
        raise ConfigError(
            f"recipe: working_set {working_set} holds {held} samples, too few for {lanes} "
            f"lane{'s' * (lanes != 1)} with batches of {order_batch_size}: use at least {needed}"
            f"{', fewer lanes' * (lanes > 1)} or smaller batches"
        )
    return OrderShape(lanes, held, piece)


def piece_samples(samples: int, size_bytes: int) -> int:
    """Return the samples of a piece of a dataset with this many in shards of ``size_bytes``."""
    fitting = max(1, PIECE_BYTES * samples // max(1, size_bytes))
    return 1 << min(fitting, samples).bit_length() - 1


def reserved_samples(order_batch_size: int, piece: int) -> int:
    """Return what a lane holds besides its window: a batch in use, and the next one read ahead.

    They begin and end within pieces, and the pieces at the lane's ends count as one.
    """
    return 2 * order_batch_size + 3 * piece


def _choose(fullest: int) -> int:
    """Return the largest power of two up to ``fullest`` and LANES_MAX, at least 1."""
    return min(LANES_MAX, 1 << max(0, fullest.bit_length() - 1))
