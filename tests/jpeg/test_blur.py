"""The blur is the numpy version's to the bit, and the exact sums', rounded, but at halves."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feeder.jpeg.blur import blur, blur_reference
from feeder.plan.augment import blur_weights


def weights_of(sigma: float, radius: int) -> list[float]:
    return blur_weights(np.array([sigma]), radius)[:, 0].tolist()


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Random levels, and many of the two extremes."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, 256, (height, width, 3), np.uint8)
    levels[rng.random(levels.shape) < 0.3] = 255
    levels[rng.random(levels.shape) < 0.2] = 0
    return levels


@settings(max_examples=60)
@example(height=8, width=8, sigma=2.0, share=1.0, seed=0)
@example(height=2048, width=2048, sigma=0.6, share=0.002, seed=0)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    sigma=st.floats(0.01, 100),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_every_version_gives_the_same_bytes(
    height: int, width: int, sigma: float, share: float, seed: int
) -> None:
    levels = noise(height, width, seed)
    weights = weights_of(sigma, int(share * (min(height, width) - 1)))
    expected = blur_reference(levels, weights)
    assert np.array_equal(blur(levels, weights), expected)
    assert np.array_equal(blur(levels, weights, portable=True), expected)
    upside_down = blur(levels[::-1], weights)  # no C-contiguous array
    assert np.array_equal(upside_down, expected[::-1])


@settings(max_examples=30)
@given(
    side=st.integers(8, 60),
    sigma=st.floats(0.05, 9),
    radius=st.integers(0, 7),
    seed=st.integers(0, 99),
)
def test_a_level_is_the_rounded_sum_of_gaussian_weights(
    side: int, sigma: float, radius: int, seed: int
) -> None:
    """torchvision's definition in float64: its kernel, mirrored edges, rounding."""
    levels = noise(side, side, seed)
    distances = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (distances / sigma) ** 2)
    kernel /= kernel.sum()
    padded = np.pad(levels.astype(float), [(radius, radius)] * 2 + [(0, 0)], mode="reflect")
    across = sum(k * padded[:, at : at + side] for at, k in enumerate(kernel))
    exact = sum(k * across[at : at + side] for at, k in enumerate(kernel))
    result = blur(levels, weights_of(sigma, radius))
    assert np.abs(result - exact).max() < 0.5 + 1e-4


def test_one_colour_stays() -> None:
    for level in (0, 1, 127, 254, 255):
        levels = np.full((23, 9, 3), level, np.uint8)
        for sigma in (0.1, 0.9, 2.0, 100.0):
            assert np.array_equal(blur(levels, weights_of(sigma, 8)), levels)


@pytest.mark.parametrize("count", [0, 9, 30])
def test_a_kernel_that_no_side_can_mirror_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="1 to as many as a side's pixels"):
        blur(noise(8, 30), [1.0] * count)


def test_weights_are_gaussian_and_the_same_on_every_machine() -> None:
    sigmas = np.array([0.01, 0.1, 0.5, 1.0, 2.0, 100.0])
    weights = blur_weights(sigmas, 127)
    assert weights.dtype == np.float32
    expected = np.exp(-0.5 * (np.arange(128)[:, np.newaxis] / sigmas) ** 2)
    expected /= expected[0] + 2 * expected[1:].sum(axis=0)
    np.testing.assert_allclose(weights, expected, rtol=1e-6, atol=1e-30)
    # As bits: no C library's exp is used, and no sum whose order differs.
    assert weights[:, 3].view(np.uint32)[[0, 2]].tolist() == [1053573674, 1029514658]
