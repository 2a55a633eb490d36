"""What to decode of n samples: the window of each crop, and how crops share windows.

Where a sample has several crops, those that are decoded at one scale may share a decode, of the
least rectangle of MCUs that contains their windows. They do where it has fewer pixels than their
own windows together. Crops at different scales share nothing: the scaled transform gives pixels of
its own.

Invariant: a crop has the same bytes from any window that contains its own, as its box is in pixels
of the whole image.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feeder.jpeg.crop_decode import McuGrids, TileWindows, cover_boxes

_BOX_ROUNDING_PX = 1 / 64
"""Pillow keeps boxes as float32, which moves coordinates below 65536 by less than this."""

_FAR = 2**32
"""Past every MCU of an image."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodePlan:
    """What to decode of n samples, and the boxes to resize."""

    windows: TileWindows
    boxes: NDArray[np.float64]
    """(n, 4): left, top, right, bottom in pixels of the whole image, decoded at its scale."""


def plan_decode(
    grids: McuGrids,
    boxes: NDArray[np.float64],
    scales: NDArray[np.int64],
    image_size: int,
    support_steps: float = 1.0,
    *,
    whole: bool = False,
) -> DecodePlan:
    """Return the tiles that resizing ``boxes`` (n, 4: x, y, w, h in source pixels) reads.

    Pillow's bilinear filter has a support of one step, or of one pixel when enlarging, around the
    centre of each output pixel, so it reads a little past the box, rounding to whole pixels as in
    ``precompute_coeffs`` of its Resample.c. ``scales`` (n,) are the DCT denominators,
    ``support_steps`` is the filter's support. ``whole`` takes all of each image's tiles, for the
    same pixels.
    """
    start = boxes[:, :2] / scales[:, None]
    side = boxes[:, 2:] / scales[:, None]
    step = side / image_size
    reach = support_steps * np.maximum(step, 1.0) - 0.5 * step + 0.5 + _BOX_ROUNDING_PX
    first = np.floor(start - reach + 1.0).astype(np.int64) * scales[:, None]
    end = np.floor(start + side + reach).astype(np.int64) * scales[:, None]
    if whole:
        first, end = np.zeros_like(first), np.stack([grids.width, grids.height], axis=1)
    windows = cover_boxes(grids, first[:, 0], first[:, 1], end[:, 0], end[:, 1], scales)
    # In the whole picture's pixels and rounded as in Pillow, so that every weight is Pillow's:
    # positions from the window's edge would round differently.
    corners = np.concatenate([start, start + side], axis=1).astype(np.float32).astype(np.float64)
    return DecodePlan(windows=windows, boxes=corners)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedDecodes:
    """The decodes of n samples with several crops, sample after sample; arrays are (m,)."""

    rows: NDArray[np.int64]
    """The sample, 0 .. n - 1."""
    scales: NDArray[np.int64]
    windows: TileWindows
    crops: list[list[int]]
    """The crops that each decode serves, numbered as their windows."""


def share_decodes(
    grids: McuGrids, windows: TileWindows, scales: NDArray[np.int64]
) -> SharedDecodes:
    """Return the decodes of n samples, given the ``grids`` of these and their crops' windows.

    ``windows`` and ``scales`` are (crops * n,): of the first crop of each sample, the second, ….
    """
    samples = len(grids.width)
    shape = len(scales) // samples, samples
    by_crop = scales.reshape(shape)
    own = tuple(edge.reshape(shape) for edge in windows.edges)
    own_px = (windows.width * windows.height).reshape(shape)
    edges = tuple(edge.copy() for edge in own)
    is_shared = np.zeros(shape, np.bool_)
    for scale in np.unique(scales).tolist():
        is_mine = by_crop == scale
        first_mcu, end_mcu, first_row, end_row = own
        union = TileWindows.of_edges(
            grids,
            np.where(is_mine, first_mcu, _FAR).min(axis=0),
            np.where(is_mine, end_mcu, 0).max(axis=0),
            np.where(is_mine, first_row, _FAR).min(axis=0),
            np.where(is_mine, end_row, 0).max(axis=0),
        )
        # Entropy decoding and the transform, which take nearly all of the time, are in proportion
        # to the pixels of the window, at one scale.
        apart_px = np.where(is_mine, own_px, 0).sum(axis=0)
        shares = is_mine & (union.width * union.height < apart_px)
        for edge, common in zip(edges, union.edges, strict=True):
            np.copyto(edge, common, where=shares)
        is_shared |= shares
    crops, rows = np.indices(shape)
    # Decodes with equal keys are one; keys rise with the sample.
    keys = (rows * 16 + by_crop) * (shape[0] + 1) + np.where(is_shared, 0, crops + 1)
    _, first, decode_of = np.unique(keys.reshape(-1), return_index=True, return_inverse=True)
    served: list[list[int]] = [[] for _ in first]
    for crop, decode in enumerate(decode_of.reshape(-1).tolist()):
        served[decode].append(crop)
    decoded_rows = rows.reshape(-1)[first]
    return SharedDecodes(
        rows=decoded_rows,
        scales=scales[first],
        windows=TileWindows.of_edges(
            grids.take(decoded_rows), *(edge.reshape(-1)[first] for edge in edges)
        ),
        crops=served,
    )
