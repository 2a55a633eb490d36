"""How the decoded cache uses its bytes: what is let in, and where things lie. Pure arithmetic.

    [head, one page][directory: 32 bytes an entry][pixels, up to the budget's last whole page]

What is let in is a matter of a sample's hash and of the budget's share of the datasets' decoded
size, so it is the same samples in every epoch, whatever the order: nothing is ever thrown out, and
nothing is decoded to be thrown out. Invariant: all parts together take at most the budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

PAGE_BYTES: Final = 4096
ENTRY_BYTES: Final = 32
PLACE_BYTES: Final = 64
"""Things begin at multiples of this: a cache line."""

_TYPICAL_ROW_BYTES: Final = 3 * 224 * 224
_FILL_SHARE: Final = 0.08
"""Everything is filled in four epochs so, and at 0.12 in three. The first one took 7 to 9 % more
with ImageNet's images, and 13 to 19 % at 0.12 (`decoded-cache/fill`, feeder-bench decode)."""
_AT_ONCE_SHARE: Final = 0.07
"""Of the images, that are filled when they are first met; an epoch of ImageNet's took 12 % more."""
_SAVED_SHARE: Final = 0.9
"""Of the decoding that a hit saves; the rest is reading it from memory that is not in a cache."""
_KEEPING_SHARE: Final = 0.2
"""What putting a picture into new memory takes, over decoding it; 280 µs over 1,300, measured."""
_PATIENCE: Final = 8.0
"""How often an image's cost must be there: more chooses better, and begins later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedSize:
    """How large a dataset is when decoded."""

    samples: int
    picture_bytes: float
    """Of a decoded picture in the cache, on average over the samples."""

    @property
    def total_bytes(self) -> float:
        """Bytes of all pictures."""
        return self.samples * self.picture_bytes


class CachePlan(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a node process tells its workers of the cache they share."""

    total_bytes: int
    """Of head, directory and pixels: the size of the file."""
    entries: int
    """Of the directory; a power of two."""
    picture_share: float
    """Share of each dataset's pictures that is let in; at most 1."""
    dataset_bytes: dict[str, int]
    """What of all node processes' budgets is each dataset's, by name."""

    @property
    def pixels_at(self) -> int:
        """Where the pixels begin in the file."""
        return PAGE_BYTES + _round_up(self.entries * ENTRY_BYTES, PAGE_BYTES)

    @property
    def pixel_bytes(self) -> int:
        """Room for pixels."""
        return self.total_bytes - self.pixels_at

    def row_share(self, dataset: str, samples: int, row_bytes: int) -> float:
        """Return the share of a dataset's packed rows that is let in, at most 1."""
        return min(1.0, self.dataset_bytes[dataset] / (samples * row_bytes))


def plan_cache(
    budget_bytes: int, sizes: Mapping[str, DecodedSize], *, nodes: int = 1
) -> CachePlan | None:
    """Plan a cache of at most ``budget_bytes`` for datasets of these sizes, by name.

    Each dataset has a share in proportion to its decoded size, so that of all of them the same
    share of the pictures is let in. Where each of ``nodes`` node processes has such a cache, what
    would fill all of them is let in, as each may be asked for a part of the samples only; if not,
    the first to come fill it. None where there is no room for a single pixel.
    """
    decoded_bytes = sum(size.total_bytes for size in sizes.values())
    all_bytes = nodes * budget_bytes
    dataset_bytes = {
        name: int(all_bytes * size.total_bytes / decoded_bytes) for name, size in sizes.items()
    }
    # As many entries as there can be of pictures or of packed rows, whichever are smaller, and as
    # many again, so that the search for one is short.
    wanted = sum(
        min(size.samples, dataset_bytes[name] / nodes / min(size.picture_bytes, _TYPICAL_ROW_BYTES))
        for name, size in sizes.items()
    )
    plan = CachePlan(
        total_bytes=budget_bytes // PAGE_BYTES * PAGE_BYTES,
        entries=max(64, 1 << (int(2 * wanted) - 1).bit_length()),
        picture_share=min(1.0, all_bytes / decoded_bytes),
        dataset_bytes=dataset_bytes,
    )
    return plan if plan.pixel_bytes > 0 else None


class FillAllowance:
    """Decides which images are decoded whole to fill the cache; counts in decoded pixels.

    All of an image takes twice the time of its typical crop, so filling everything at first sight
    would double the first epoch. Up to _AT_ONCE_SHARE of the images that is bearable, and done. Of
    more, a share of what is decoded anyway, and most of what hits save, may be spent on filling: no
    epoch takes much longer than without a cache, and all is there, as hits pay for more, in four.
    An image is filled where that is a small part of what was saved up, so those go first of which
    the crop at hand needs nearly all.
    """

    def __init__(self, let_in_share: float) -> None:
        """``let_in_share`` of all images are ever asked about."""
        self._is_bounded = let_in_share > _AT_ONCE_SHARE
        self._left_px = 0.0
        self._largest_px = 0

    def earn(self, decoded_px: float, saved_px: float) -> None:
        """Add what was decoded for crops, and what hits saved from being decoded."""
        self._left_px += _FILL_SHARE * decoded_px + _SAVED_SHARE * saved_px

    def spend(self, whole_px: int, needed_px: int) -> bool:
        """Whether to decode ``whole_px`` where the crop needs ``needed_px``; counts it if so."""
        if not self._is_bounded:
            return True
        self._largest_px = max(self._largest_px, whole_px)
        enough_px = _PATIENCE * (1 + _KEEPING_SHARE) * self._largest_px
        self._left_px = min(self._left_px, enough_px)  # more would only be a burst later
        cost_px = whole_px - needed_px + _KEEPING_SHARE * whole_px
        if _PATIENCE * cost_px > self._left_px:
            return False
        self._left_px -= cost_px
        return True


def place_bytes(size_bytes: int) -> int:
    """Return the room that something of ``size_bytes`` takes."""
    return _round_up(size_bytes, PLACE_BYTES)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
