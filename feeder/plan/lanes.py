"""Lanes: the parts of a dataset that batches are cut from, and that feeders own and cache.

    packed order    0 ……………………………………………………………………………… samples - 1
    lanes           [ lane 0: 9 batches + 1 ][ lane 1: 10 batches ][ lane 2: 10 batches + 1 ] …

A lane is a range of the packed order, which packing has shuffled: every lane is a fair sample of
the dataset. It holds whole batches of ``order_batch_size`` and its share of the samples that remain
when the whole dataset is cut into batches. So fewer than ``order_batch_size`` samples are left over
in all lanes together, whatever the number of lanes, and lanes need not follow the shards' borders:
packing fixes the shards only.

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

BATCHES_A_LANE: Final = 8
"""Fewest batches of a lane that is chosen by size. A batch is drawn from one lane: with few batches
a lane, the same samples would meet in a batch again and again."""


class OrderShape(NamedTuple):  # replaced by the order
    lanes: int
    working_set: int
    piece: int


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


def choose_lanes(samples: int, order_batch_size: int) -> int:
    """Return the number of lanes of a recipe that leaves it open, alike on every machine.

    A power of two, as many as the batches fill, so that feeders of most numbers own equal shares.
    """
    fullest = samples // order_batch_size // BATCHES_A_LANE
    return min(LANES_MAX, 1 << max(0, fullest.bit_length() - 1))


def resolve_lanes(lanes: int, samples: int, order_batch_size: int) -> int:
    """Return the number of lanes for a recipe's ``lanes``, where 0 means by size.

    Raises ConfigError where a lane would hold no whole batch.
    """
    if lanes == 0:
        return choose_lanes(samples, order_batch_size)
    batches = samples // order_batch_size
    if lanes > max(1, batches):
        raise ConfigError(
            f"recipe: lanes {lanes} is more than the {batches} whole batches of {order_batch_size} "
            f"in {samples} samples: use at most {max(1, batches)}, or 0 to choose by size"
        )
    return lanes
