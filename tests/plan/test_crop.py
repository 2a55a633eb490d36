"""Crops against torchvision's rules, written out here and driven by the same draws."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.plan.crop import TRIES, CropPlan, plan_crops
from feeder.plan.recipe import Recipe
from feeder.plan.rng import Stream, uniforms
from tests.plan.fairness import ks_statistic

Box = tuple[float, float, float, float]

TRAIN = Recipe.for_split("train", batch_size=256)
VAL = Recipe.for_split("val", batch_size=256)

sizes = st.tuples(
    st.integers(1, 5000) | st.sampled_from([1, 2, 3, 65_535]),
    st.integers(1, 5000) | st.sampled_from([1, 2, 3, 65_535]),
)

THIN = [(1, 1000), (1000, 1), (3, 1000), (1000, 3), (1, 1)]  # whose crops fall back to the centre
EVERY_SMALL_SIZE = [(width, height) for width in range(1, 40) for height in range(1, 40)]


def crop_all(
    recipe: Recipe, image_sizes: list[tuple[int, int]], *, seed: int = 0, epoch: int = 0
) -> CropPlan:
    return plan_crops(
        recipe,
        seed=seed,
        epoch=epoch,
        sample_ids=np.arange(len(image_sizes), dtype=np.int64),
        widths=np.array([width for width, _ in image_sizes], dtype=np.uint16),
        heights=np.array([height for _, height in image_sizes], dtype=np.uint16),
    )


def random_resized_by_hand(
    width: int,
    height: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    draws: NDArray[np.float64],
) -> Box:
    """torchvision.transforms.RandomResizedCrop.get_params, one image at a time."""
    uniform = iter(draws.tolist())
    areas = [next(uniform) for _ in range(TRIES)]
    ratios = [next(uniform) for _ in range(TRIES)]
    place_x, place_y = uniform
    area = height * width
    log_ratio = (math.log(ratio[0]), math.log(ratio[1]))
    for area_draw, ratio_draw in zip(areas, ratios, strict=True):
        target_area = area * (scale[0] + area_draw * (scale[1] - scale[0]))
        aspect_ratio = math.exp(log_ratio[0] + ratio_draw * (log_ratio[1] - log_ratio[0]))
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            i = math.floor(place_y * (height - h + 1))
            j = math.floor(place_x * (width - w + 1))
            return j, i, w, h
    in_ratio = float(width) / float(height)
    if in_ratio < min(ratio):
        w = width
        h = round(w / min(ratio))
    elif in_ratio > max(ratio):
        h = height
        w = round(h * max(ratio))
    else:
        w = width
        h = height
    w, h = max(w, 1), max(h, 1)  # Feeder's addition: torchvision would make an empty crop
    return (width - w) // 2, (height - h) // 2, w, h


def centre_by_hand(width: int, height: int, resize: int, crop: int) -> Box:
    """torchvision's Resize(resize) and CenterCrop(crop), converted to source pixels."""
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = resize, int(resize * long / short)
    new_w, new_h = (new_short, new_long) if width <= height else (new_long, new_short)
    top = round((new_h - crop) / 2.0)
    left = round((new_w - crop) / 2.0)
    return (
        left * width / new_w,
        top * height / new_h,
        crop * width / new_w,
        crop * height / new_h,
    )


@settings(max_examples=200)
@example(THIN, 0, 0, (1.0, 1.0), (3 / 4, 4 / 3))
@example(THIN, 0, 0, (0.08, 1.0), (0.1, 0.2))  # no side of 0 pixels
@given(
    image_sizes=st.lists(sizes, min_size=1, max_size=30),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**31 - 1),
    scale=st.sampled_from([(0.08, 1.0), (0.5, 0.5), (1.0, 1.0), (0.001, 0.01)]),
    ratio=st.sampled_from([(3 / 4, 4 / 3), (1.0, 1.0), (0.5, 0.6), (2.0, 3.0), (0.1, 10.0)]),
)
def test_random_resized_boxes_equal_torchvisions_for_the_same_draws(
    image_sizes: list[tuple[int, int]],
    seed: int,
    epoch: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> None:
    recipe = Recipe.for_split("train", batch_size=1, scale=scale, ratio=ratio)
    plan = crop_all(recipe, image_sizes, seed=seed, epoch=epoch)
    ids = np.arange(len(image_sizes), dtype=np.int64)
    draws = uniforms(seed, epoch, ids, Stream.CROP, 2 * TRIES + 2)
    for box, (width, height), row in zip(plan.boxes.tolist(), image_sizes, draws, strict=True):
        expected = random_resized_by_hand(width, height, scale, ratio, row)
        assert tuple(box) == expected


@settings(max_examples=200)
@example(EVERY_SMALL_SIZE, "random-resized", 0, 224)
@example(EVERY_SMALL_SIZE, "centre", 0, 224)
@given(
    image_sizes=st.lists(sizes, min_size=1, max_size=30),
    crop=st.sampled_from(["random-resized", "centre"]),
    seed=st.integers(0, 2**64 - 1),
    image_size=st.sampled_from([8, 31, 224, 256]),
)
def test_every_box_lies_inside_its_image(
    image_sizes: list[tuple[int, int]], crop: str, seed: int, image_size: int
) -> None:
    recipe = Recipe.for_split("train", batch_size=1, crop=crop, image_size=image_size)
    plan = crop_all(recipe, image_sizes, seed=seed)
    x, y, w, h = plan.boxes.T
    widths, heights = np.array(image_sizes, dtype=np.float64).T
    assert plan.boxes.dtype == np.float64
    assert ((x >= 0) & (y >= 0) & (w > 0) & (h > 0)).all()
    assert ((x + w <= widths) & (y + h <= heights)).all()
    if crop == "random-resized":
        assert (plan.boxes == np.floor(plan.boxes)).all()
        assert ((w >= 1) & (h >= 1)).all()


# By hand: 500x375 -> 341x256, left round(58.5) = 58, top 16; 259x256, left round(17.5) = 18.
@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((500, 375), (58 * 500 / 341, 16 * 375 / 256, 224 * 500 / 341, 224 * 375 / 256)),
        ((259, 256), (18, 16, 224, 224)),
        ((1, 1000), (16 / 256, 127888 / 256, 224 / 256, 224 / 256)),
    ],
)
def test_centre_boxes_match_the_golden_ones(size: tuple[int, int], box: Box) -> None:
    assert tuple(crop_all(VAL, [size]).boxes[0].tolist()) == pytest.approx(box, rel=1e-15, abs=0)


@given(
    image_sizes=st.lists(sizes, min_size=1, max_size=30),
    image_size=st.integers(8, 300),
    margin=st.integers(0, 100),
)
def test_centre_boxes_equal_torchvisions(
    image_sizes: list[tuple[int, int]], image_size: int, margin: int
) -> None:
    resize = image_size + margin
    recipe = Recipe.for_split("val", batch_size=1, image_size=image_size, resize_size=resize)
    for box, (width, height) in zip(
        crop_all(recipe, image_sizes).boxes.tolist(), image_sizes, strict=True
    ):
        expected = centre_by_hand(width, height, resize, image_size)
        assert box == pytest.approx(expected, rel=1e-14, abs=1e-10)


@given(
    image_sizes=st.lists(sizes, min_size=1, max_size=30),
    crop=st.sampled_from(["random-resized", "centre"]),
    image_size=st.sampled_from([8, 64, 224]),
    seed=st.integers(0, 1000),
    scaling=st.booleans(),
)
def test_scaled_decoding_takes_the_largest_scale_that_keeps_the_output_size(
    image_sizes: list[tuple[int, int]], crop: str, image_size: int, seed: int, scaling: bool
) -> None:
    recipe = Recipe.for_split(
        "train", batch_size=1, crop=crop, image_size=image_size, dct_scaling=scaling
    )
    plan = crop_all(recipe, image_sizes, seed=seed)
    for (_, _, w, h), scale in zip(plan.boxes.tolist(), plan.scales.tolist(), strict=True):
        fitting = [d for d in (1, 2, 4, 8) if min(w, h) / d >= image_size]
        assert scale == (max(fitting, default=1) if scaling else 1)


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 1}])
def test_another_seed_or_epoch_changes_nearly_every_crop(change: dict[str, int]) -> None:
    image_sizes = [(500, 375)] * 5000
    first = crop_all(TRAIN, image_sizes)
    other = crop_all(TRAIN, image_sizes, **change)
    assert (first.boxes == other.boxes).all(axis=1).mean() < 0.001
    assert 0.45 < (first.flips == other.flips).mean() < 0.55


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1.0])
def test_flips_have_their_probability_and_do_not_depend_on_the_crop(probability: float) -> None:
    recipe = Recipe.for_split("train", batch_size=256, flip_probability=probability)
    plan = crop_all(recipe, [(500, 375)] * 20_000)
    assert (plan.boxes == crop_all(TRAIN, [(500, 375)] * 20_000).boxes).all()
    deviation = math.sqrt(probability * (1 - probability) / 20_000)
    assert abs(plan.flips.mean() - probability) <= 4 * deviation
    areas = plan.boxes[:, 2] * plan.boxes[:, 3]
    if 0 < probability < 1:
        assert ks_statistic(areas[plan.flips], areas[~plan.flips]) < 1.95  # p = 0.001
