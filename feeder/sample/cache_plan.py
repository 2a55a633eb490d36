"""The layout of the decoded cache, and which samples it admits. Pure arithmetic.

    [head, one page][directory: 32 bytes an entry][pixels, up to the budget's last whole page]

A sample is admitted by its hash, in the proportion of the budget to the datasets' decoded size. So
the same samples are cached in every epoch, whatever the order, and there is no eviction. Invariant:
all parts together take at most the budget.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

PAGE_BYTES: Final = 4096
ENTRY_BYTES: Final = 32
ALIGNMENT_BYTES: Final = 64
"""Of pictures and rows: a cache line."""

_TYPICAL_ROW_BYTES: Final = 3 * 224 * 224
_PICTURES_MAX: Final = 4
"""Of an image: at 1/1, 1/2, 1/4 and 1/8 size."""
_FILL_SHARE: Final = 0.08
"""Of decoding, to be spent on filling. With ImageNet's images this fills the cache in four epochs;
the first takes 12 to 13 % longer (`decoded-cache/fill` of feeder-bench decode, on an AMD EPYC)."""
_AT_ONCE_SHARE: Final = 0.07
"""Up to this share of the images is filled at first sight; an epoch of ImageNet took 12 % more."""
_SAVED_SHARE: Final = 0.9
"""Of the decoding that a hit saves; the rest is reading the pixels from memory."""
_KEEPING_SHARE: Final = 0.2
"""Cost of writing a picture to new memory, relative to decoding it: 280 µs to 1,300, measured."""
_PATIENCE: Final = 8.0
"""How many times an image's cost must be saved up; more chooses better, but begins later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedSize:
    """The size of a dataset when decoded."""

    samples: int
    picture_bytes: float
    """Mean size of a picture in the cache, at full size."""

    @property
    def total_bytes(self) -> float:
        """Bytes of all pictures at full size; those at other sizes take at most a third more."""
        return self.samples * self.picture_bytes


class CachePlan(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The plan of a node process's cache, which it sends to its workers."""

    total_bytes: int
    """Of head, directory and pixels: the size of the file."""
    entries: int
    """Of the directory; a power of two."""
    picture_share: float
    """Share of each dataset's pictures that is admitted, of those at each size; at most 1."""
    dataset_bytes: dict[str, int]
    """Each dataset's part of the budgets of all node processes, by name."""

    @property
    def pixels_at(self) -> int:
        """Offset of the pixels in the file."""
        return PAGE_BYTES + _round_up(self.entries * ENTRY_BYTES, PAGE_BYTES)

    @property
    def pixel_bytes(self) -> int:
        """Room for pixels."""
        return self.total_bytes - self.pixels_at

    def row_share(self, dataset: str, samples: int, row_bytes: int) -> float:
        """Return the share of a dataset's packed rows that is admitted, at most 1."""
        return min(1.0, self.dataset_bytes.get(dataset, 0) / (samples * row_bytes))


def plan_cache(
    budget_bytes: int, sizes: Mapping[str, DecodedSize], *, nodes: int = 1
) -> CachePlan | None:
    """Plan a cache of at most ``budget_bytes`` for datasets of these sizes, by name.

    Each dataset gets a part in proportion to its decoded size, so that the same share of the
    pictures of each is admitted. Where each of ``nodes`` node processes has such a cache, enough is
    admitted to fill all of them, as each may serve only a part of the samples. If more is admitted
    than there is room for, by that or by pictures at 1/2, 1/4 and 1/8 size, the first ones fill it.
    None if there is no room for a single pixel.
    """
    if not sizes:  # none can be opened now
        return None
    decoded_bytes = sum(size.total_bytes for size in sizes.values())
    all_bytes = nodes * budget_bytes
    dataset_bytes = {
        name: int(all_bytes * size.total_bytes / decoded_bytes) for name, size in sizes.items()
    }
    # Short probing: twice as many entries as there are pictures at all sizes, or as whole pictures
    # or packed rows, whichever are smaller, fit.
    wanted = sum(
        min(
            _PICTURES_MAX * size.samples,
            dataset_bytes[name] / nodes / min(size.picture_bytes, _TYPICAL_ROW_BYTES),
        )
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
    """Decides which images are decoded whole to fill the cache: a token bucket of decoded pixels.

    Decoding a whole image takes twice as long as its typical crop, so filling everything at first
    sight would double the time of the first epoch. That is done only for up to _AT_ONCE_SHARE of
    the images. Otherwise filling may spend a share of what is decoded anyway and most of what hits
    save: no epoch takes much longer than without a cache, and it is full after four. An image is
    filled if it costs a small part of the bucket, so those whose crop needs nearly all of them come
    first.
    """

    def __init__(self, admitted_share: float) -> None:
        """``admitted_share`` of all images may be filled."""
        self._is_bounded = admitted_share > _AT_ONCE_SHARE
        self._remaining_px = 0.0
        self._largest_px = 0

    def earn(self, decoded_px: float, saved_px: float) -> None:
        """Add the pixels that were decoded for crops, and those that hits saved."""
        self._remaining_px += _FILL_SHARE * decoded_px + _SAVED_SHARE * saved_px

    def spend(self, whole_px: int, needed_px: int) -> bool:
        """Whether to decode ``whole_px`` for a crop of ``needed_px``; takes the cost if so."""
        if not self._is_bounded:
            return True
        self._largest_px = max(self._largest_px, whole_px)
        enough_px = _PATIENCE * (1 + _KEEPING_SHARE) * self._largest_px
        self._remaining_px = min(self._remaining_px, enough_px)  # else a burst later
        cost_px = whole_px - needed_px + _KEEPING_SHARE * whole_px
        if _PATIENCE * cost_px > self._remaining_px:
            return False
        self._remaining_px -= cost_px
        return True


def aligned_bytes(size_bytes: int) -> int:
    """Return the room that a picture or row of ``size_bytes`` takes."""
    return _round_up(size_bytes, ALIGNMENT_BYTES)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
