"""Gaussian blur: torchvision's GaussianBlur, rows and columns apart.

A level is a weighted sum of its row's neighbours, then of its column's, rounded half to even; past
an edge the picture is mirrored about the pixel at the edge. torchvision convolves with the product
of both kernels, in float32 and in an order that its library chooses, so its sums differ in the last
bits, and a level where the exact sum is that close to a half. Here the order is fixed and every
operation is one that IEEE 754 rounds exactly, so the bytes are the same on every machine.

``blur`` is in C; ``blur_reference`` is the same in numpy.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feeder.jpeg import _native


def blur(
    levels: NDArray[np.uint8], weights: Sequence[float], *, portable: bool = False
) -> NDArray[np.uint8]:
    """Return levels (height, width, 3) blurred.

    ``weights`` are those of the centre and of the pixels at distance 1, 2, … on both sides, float32
    and none negative, which add up to 1 with those but the first counted twice. Raises ValueError
    where they reach past more than one edge. ``portable`` leaves out AVX2.
    """
    height, width, _ = levels.shape
    out = np.empty_like(levels, order="C")
    kernel = np.array(weights, np.float32)
    _native.blur(np.ascontiguousarray(levels), width, height, kernel, out, portable)
    return out


def blur_reference(levels: NDArray[np.uint8], weights: Sequence[float]) -> NDArray[np.uint8]:
    """Do what ``blur`` does with numpy alone."""
    kernel = np.array(weights, np.float32)
    radius = len(kernel) - 1
    sums = levels.astype(np.float32)
    for axis in (1, 0):
        padding = [(radius, radius) if axis == other else (0, 0) for other in range(3)]
        source = np.moveaxis(np.pad(sums, padding, mode="reflect"), axis, 0)
        size = len(source) - 2 * radius
        blurred = kernel[0] * source[radius : radius + size]
        for distance in range(1, radius + 1):
            before = source[radius - distance : radius - distance + size]
            after = source[radius + distance : radius + distance + size]
            blurred += kernel[distance] * (before + after)
        sums = np.moveaxis(blurred, 0, axis)
    return np.rint(sums).astype(np.uint8)
