"""Crops have the distribution of torchvision's RandomResizedCrop with another generator."""

import functools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from feeder.plan.crop import _exp, plan_crops
from feeder.plan.recipe import Recipe
from tests.support.fairness import chi_square_z, ks_statistic

SAMPLES = 20_000
UNLIKELY = 1.95  # p = 0.001 of the two-sample Kolmogorov-Smirnov test


@functools.cache
def torchvision_boxes(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> NDArray[np.float64]:
    """SAMPLES boxes (x, y, w, h), computed as get_params does from numpy's generator."""
    rng = np.random.default_rng(20_240_901)
    log_ratio = np.log(np.array(ratio, dtype=np.float32))
    boxes = np.empty((SAMPLES, 4))
    for number in range(SAMPLES):
        for _ in range(10):
            target_area = height * width * rng.uniform(scale[0], scale[1])
            aspect_ratio = math.exp(rng.uniform(log_ratio[0], log_ratio[1]))
            w = round(math.sqrt(target_area * aspect_ratio))
            h = round(math.sqrt(target_area / aspect_ratio))
            if 0 < w <= width and 0 < h <= height:
                boxes[number] = rng.integers(width - w + 1), rng.integers(height - h + 1), w, h
                break
        else:
            in_ratio = width / height
            if in_ratio < min(ratio):
                w, h = width, round(width / min(ratio))
            elif in_ratio > max(ratio):
                w, h = round(height * max(ratio)), height
            else:
                w, h = width, height
            boxes[number] = (width - w) // 2, (height - h) // 2, w, h
    return boxes


def feeder_boxes(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> NDArray[np.float64]:
    return plan_crops(
        Recipe.for_split("train", batch_size=1, scale=scale, ratio=ratio),
        seed=42,
        epoch=7,
        sample_ids=np.arange(SAMPLES, dtype=np.int64),
        widths=np.full(SAMPLES, width),
        heights=np.full(SAMPLES, height),
    ).boxes


def measures(boxes: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """The compared properties: each alone, and some combinations."""
    x, y, w, h = boxes.T
    return {
        "area": w * h,
        "aspect": np.log(w / h),
        "x": x,
        "y": y,
        "centre x": x + w / 2,
        "centre y": y + h / 2,
        "x and area": x * w * h,
        "x and y": x * y,
    }


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [
        ((500, 375), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((375, 500), (0.35, 1.0), (3 / 4, 4 / 3)),
        ((900, 150), (0.08, 1.0), (3 / 4, 4 / 3)),  # often falls back
        ((64, 64), (0.9, 1.0), (0.5, 2.0)),
    ],
)
def test_random_resized_crops_are_distributed_as_torchvisions(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    ours = feeder_boxes(*size, scale, ratio)
    theirs = torchvision_boxes(*size, scale, ratio)
    for name, values in measures(ours).items():
        assert ks_statistic(values, measures(theirs)[name]) < UNLIKELY, name


def test_kolmogorov_smirnov_notices_a_slightly_wrong_scale() -> None:
    ours = feeder_boxes(500, 375, (0.1, 1.0), (3 / 4, 4 / 3))
    theirs = torchvision_boxes(500, 375, (0.08, 1.0), (3 / 4, 4 / 3))
    assert ks_statistic(measures(ours)["area"], measures(theirs)["area"]) > UNLIKELY


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_flips_have_their_probability_and_do_not_depend_on_the_crop(probability: float) -> None:
    plan = plan_crops(
        Recipe.for_split("train", batch_size=1, flip_probability=probability),
        seed=1,
        epoch=1,
        sample_ids=np.arange(SAMPLES, dtype=np.int64),
        widths=np.full(SAMPLES, 500),
        heights=np.full(SAMPLES, 375),
    )
    deviation = math.sqrt(probability * (1 - probability) / SAMPLES)
    assert abs(plan.flips.mean() - probability) < 4 * deviation
    areas = plan.boxes[:, 2] * plan.boxes[:, 3]
    assert ks_statistic(areas[plan.flips], areas[~plan.flips]) < UNLIKELY


def test_crop_positions_are_uniform_up_to_the_last_pixel() -> None:
    recipe = Recipe.for_split("train", batch_size=1, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    boxes = plan_crops(
        recipe,
        seed=0,
        epoch=0,
        sample_ids=np.arange(SAMPLES, dtype=np.int64),
        widths=np.full(SAMPLES, 20),
        heights=np.full(SAMPLES, 20),
    ).boxes
    assert (boxes[:, 2:] == 10).all()
    cells = (boxes[:, 0] * 11 + boxes[:, 1]).astype(np.int64)
    counts = np.bincount(cells, minlength=121)
    assert counts.size == 121
    assert abs(chi_square_z(counts, SAMPLES / 121)) < 4


def test_exp_is_right_to_fourteen_digits() -> None:
    values = np.linspace(math.log(0.01), math.log(100), 100_001)
    assert np.abs(_exp(values) / np.exp(values) - 1).max() < 1e-14
    assert _exp(np.zeros(1))[0] == 1.0
