"""Each operation against its definition, in numpy.

The definitions are those of torchvision's ``_functional_pil.py`` and ``autoaugment.py`` and of the
Pillow operations that they call.
"""

import colorsys
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from feeder.jpeg.blur import blur_reference
from feeder.plan.augment import blur_weights
from feeder.plan.operations import Blur, Mixture, Operation, Step
from feeder.sample.augment_ops import apply_steps

SIDE = 41


def noise(seed: int = 0, side: int = SIDE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)


def muted(seed: int = 0, side: int = SIDE) -> np.ndarray:
    """Levels of a narrow range, unevenly filled, which autocontrast and equalise change."""
    levels = np.random.default_rng(seed).normal([90, 120, 60], [5, 20, 9], (side, side, 3))
    return levels.clip(0, 255).astype(np.uint8)


def apply(levels: np.ndarray, operation: Operation, amount: Any) -> np.ndarray:
    image = apply_steps(Image.fromarray(levels), [(operation, amount)])
    assert image.mode == "RGB"
    assert image.size == (levels.shape[1], levels.shape[0])
    return np.asarray(image)


def mix(degenerate: np.ndarray, levels: np.ndarray, factor: float) -> np.ndarray:
    """degenerate + factor × (levels − degenerate), clipped and truncated; in float32."""
    low = degenerate.astype(np.float32)
    mixed = low + np.float32(factor) * (levels.astype(np.float32) - low)
    return mixed.clip(0, 255).astype(np.uint8)


def luma(levels: np.ndarray) -> np.ndarray:
    """Return Pillow's L, checked against the ITU-R 601-2 weights.

    Pillow and Pillow-SIMD have them in 16 and 15 bits, so a half may go either way.
    """
    grey = np.asarray(Image.fromarray(levels).convert("L"))
    assert np.abs(grey - levels @ [0.299, 0.587, 0.114]).max() < 0.51
    return grey


factors = st.floats(0, 10, width=32)
pictures = st.builds(
    lambda kind, seed: kind(seed), st.sampled_from([noise, muted]), st.integers(0, 99)
)


@settings(max_examples=40)
@example(noise(), 1.0)
@given(levels=pictures, factor=factors)
def test_enhancements_are_blends(levels: np.ndarray, factor: float) -> None:
    grey = luma(levels)
    padded, smooth = levels.astype(int), levels.copy()
    inner = sum(padded[y : SIDE - 2 + y, x : SIDE - 2 + x] for y in range(3) for x in range(3))
    smooth[1:-1, 1:-1] = np.floor((inner + 4 * padded[1:-1, 1:-1]) / 13 + 0.5)
    degenerates: dict[Operation, np.ndarray] = {
        "brightness": np.zeros_like(levels),
        "contrast": np.full_like(levels, int(grey.mean() + 0.5)),
        "saturation": np.stack([grey] * 3, axis=2),
        "sharpness": smooth,
    }
    for operation, degenerate in degenerates.items():
        result = apply(levels, operation, factor)
        assert np.array_equal(result, mix(degenerate, levels, factor)), operation


@given(bits=st.integers(0, 8), threshold=st.floats(0, 256), seed=st.integers(0, 99))
def test_posterise_and_solarise(bits: int, threshold: float, seed: int) -> None:
    levels = noise(seed)
    kept = levels.astype(int) // 2 ** (8 - bits) * 2 ** (8 - bits)
    assert np.array_equal(apply(levels, "posterise", float(bits)), kept)
    inverted = np.where(levels < threshold, levels, 255 - levels)
    assert np.array_equal(apply(levels, "solarise", threshold), inverted)
    assert np.array_equal(apply(levels, "invert", 0.0), 255 - levels)


def test_a_vertical_flip_exchanges_top_and_bottom() -> None:
    levels = noise()
    assert np.array_equal(apply(levels, "vertical-flip", 0.0), levels[::-1])


@pytest.mark.parametrize("side", [8, SIDE, 224])
def test_a_blur_keeps_the_image_upright(side: int) -> None:
    levels = noise(side=side)
    levels[: side // 2] = (200, 10, 90)
    weights = tuple(blur_weights(np.array([1.0]), 3)[:, 0].tolist())
    blurred = apply(levels, "blur", Blur(1.0, weights))
    assert np.array_equal(blurred, blur_reference(levels, weights))


def test_augmix_is_the_truncated_weighted_sum_of_its_chains() -> None:
    levels = noise()
    chains: tuple[Any, ...] = (
        (0.25, (("rotate", 20.0), ("posterise", 2.0))),
        (0.125, (("autocontrast", 0.0),)),
        (0.3, ()),
    )
    expected = np.float32(0.325) * levels.astype(np.float32)
    for weight, steps in chains:
        expected += np.float32(weight) * np.asarray(apply_steps(Image.fromarray(levels), steps))
    mixed = apply(levels, "augmix", Mixture(0.325, chains))
    assert np.array_equal(mixed, expected.astype(np.uint8))


@given(levels=pictures)
def test_autocontrast_stretches_each_channel(levels: np.ndarray) -> None:
    low = levels.min(axis=(0, 1)).astype(float)
    high = levels.max(axis=(0, 1)).astype(float)
    scale = 255.0 / (high - low)
    stretched = (levels * scale - low * scale).clip(0, 255).astype(np.uint8)
    assert np.array_equal(apply(levels, "autocontrast", 0.0), stretched)


@given(levels=pictures)
def test_equalise_flattens_each_channels_histogram(levels: np.ndarray) -> None:
    expected = np.empty_like(levels)
    for channel in range(3):
        plane = levels[..., channel]
        counts = np.bincount(plane.ravel(), minlength=256)
        step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
        below = np.concatenate([[0], np.cumsum(counts)[:-1]])
        table = (below + step // 2) // step if step else np.arange(256)
        expected[..., channel] = np.minimum(table, 255)[plane]
    assert np.array_equal(apply(levels, "equalise", 0.0), expected)


@pytest.mark.parametrize("operation", ["autocontrast", "equalise"])
def test_one_colour_has_no_contrast_to_stretch(operation: Operation) -> None:
    levels = np.full((8, 8, 3), (3, 200, 77), np.uint8)
    assert np.array_equal(apply(levels, operation, 0.0), levels)


def test_greyscale_is_the_luma_in_all_channels() -> None:
    levels = noise()
    grey = apply(levels, "greyscale", 0.0)
    assert (grey == grey[..., :1]).all()
    assert np.array_equal(grey[..., 0], luma(levels))


def _shift_hue(pixel: tuple[int, ...], turns: float) -> tuple[int, ...]:
    """torchvision's adjust_hue of one pixel: to HSV in bytes, add modulo 256, and back."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(level / 255 for level in pixel))
    turned = (int(hue * 255) + int(turns * 255)) % 256
    back = colorsys.hsv_to_rgb(turned / 255, int(saturation * 255) / 255, value)
    return tuple(round(level * 255) for level in back)


@given(turns=st.floats(-0.5, 0.5), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_hue_shifts_around_the_circle(turns: float, seed: int) -> None:
    levels = noise(seed, 9)
    expected = [[_shift_hue(tuple(pixel), turns) for pixel in row] for row in levels.tolist()]
    # HSV is rounded to bytes: one step of hue or saturation is up to 6 levels.
    difference = np.abs(apply(levels, "hue", turns).astype(int) - np.array(expected))
    assert difference.max() <= 6
    assert (difference > 1).mean() < 0.02


def check_moved(levels: np.ndarray, moved: np.ndarray, forth: np.ndarray, centre: float) -> None:
    """Compare with the nearest source pixel, black outside, except close to a border of pixels.

    ``forth`` (2, 2) moves a source's (x, y) from the centre. Pillow computes positions in 16.16
    fixed point, which may round across a border.
    """
    side = len(levels)
    ys, xs = np.mgrid[:side, :side] + 0.5 - centre
    sources = np.einsum("ij,jyx->iyx", np.linalg.inv(forth), np.stack([xs, ys])) + centre
    clear = (np.abs(sources - np.rint(sources)) > 0.005).all(axis=0)
    assert clear.mean() > 0.3
    x, y = np.floor(sources).astype(int)
    inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
    expected = np.where(inside[..., None], levels[y.clip(0, side - 1), x.clip(0, side - 1)], 0)
    assert np.array_equal(moved[clear], expected[clear])


@given(amount=st.floats(-0.99, 0.99).filter(lambda amount: abs(amount) > 0.01))
def test_shears_are_about_the_corner(amount: float) -> None:
    """torchvision's shear of arctan(amount): a source moves by -amount for each pixel."""
    levels = noise()
    check_moved(levels, apply(levels, "shear-x", amount), np.array([[1, -amount], [0, 1]]), 0)
    check_moved(levels, apply(levels, "shear-y", amount), np.array([[1, 0], [-amount, 1]]), 0)


@given(pixels=st.integers(-60, 60))
def test_translations_leave_black_behind(pixels: int) -> None:
    levels = noise() | np.uint8(1)  # nowhere black
    for operation, axis in (("translate-x", 1), ("translate-y", 0)):
        moved = apply(levels, operation, float(pixels))  # type: ignore[arg-type]
        expected = np.zeros_like(levels)
        kept = SIDE - min(abs(pixels), SIDE)
        source, target = (0, SIDE - kept) if pixels >= 0 else (SIDE - kept, 0)
        read: list[slice] = [slice(None)] * 2
        written: list[slice] = [slice(None)] * 2
        read[axis], written[axis] = slice(source, source + kept), slice(target, target + kept)
        expected[tuple(written)] = levels[tuple(read)]
        assert np.array_equal(moved, expected), (operation, pixels)


@given(degrees=st.floats(-135, 135).filter(lambda degrees: abs(degrees % 45) > 0.5))
def test_rotation_is_counter_clockwise_about_the_centre(degrees: float) -> None:
    levels = noise()
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turned = apply(levels, "rotate", degrees)
    check_moved(levels, turned, np.array([[cos, sin], [-sin, cos]]), SIDE / 2)  # y points down
    assert np.array_equal(apply(levels, "rotate", 90.0), np.rot90(levels))


def test_steps_are_applied_in_order() -> None:
    levels = noise()
    steps: list[Step] = [("posterise", 2.0), ("brightness", 0.5), ("rotate", 20.0)]
    one_by_one = levels
    for step in steps:
        one_by_one = apply(one_by_one, *step)
    assert np.array_equal(np.asarray(apply_steps(Image.fromarray(levels), steps)), one_by_one)
    assert not np.array_equal(
        np.asarray(apply_steps(Image.fromarray(levels), reversed(steps))), one_by_one
    )
