"""Other interpolations against Pillow on the whole image, and against torch's plain bilinear."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feeder.cli import main as cli
from feeder.dataset.opened import Dataset
from feeder.jpeg.plain_bilinear import resize_plainly
from feeder.plan.crop import plan_crops
from feeder.plan.recipe import Interpolation, Recipe
from feeder.sample.reader import SampleReader
from tests.support.jpegs import decode, encode, picture

SIZES = [(224, 200), (31, 40), (500, 375), (900, 61), (1, 1), (449, 700)]
SIZE = 96


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("interpolation")
    (folder / "images" / "all").mkdir(parents=True)
    for width, height in SIZES:
        name = folder / "images" / "all" / f"{width}x{height}.jpg"
        name.write_bytes(encode(picture(width, height), "4:2:0"))
    assert cli.main(["pack", str(folder / "images"), str(folder / "packed"), "--jobs", "1"]) == 0
    return Dataset.open(folder / "packed")


def nearest_two(levels: np.ndarray, box: tuple[float, float, float, float]) -> np.ndarray:
    """Bilinear without antialiasing of a box (left, top, right, bottom), in float64, unrounded."""
    axes = []
    for start, end, pixels in ((box[0], box[2], levels.shape[1]), (box[1], box[3], len(levels))):
        positions = start + (np.arange(SIZE) + 0.5) * (end - start) / SIZE - 0.5
        weights = 1 - np.abs(np.clip(positions, 0, pixels - 1)[:, None] - np.arange(pixels))
        axes.append(np.maximum(weights, 0))
    across, down = axes
    rows = np.stack([across @ row for row in levels.astype(float)])  # (height, SIZE, 3)
    return np.stack([down @ rows[..., channel] for channel in range(3)], axis=2)


@pytest.mark.parametrize("interpolation", ["bicubic", "box", "bilinear-no-antialias"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_crop_equals_that_of_the_whole_image(
    dataset: Dataset, interpolation: Interpolation, split: str
) -> None:
    """The decoded tiles reach as far as the filter reads."""
    ids = np.arange(len(SIZES))
    recipe = Recipe.for_split(
        split,  # type: ignore[arg-type]
        batch_size=8,
        image_size=SIZE,
        interpolation=interpolation,
        dct_scaling=False,
        packing="uint8-hwc-rgb",
    )
    records = dataset.read_records(ids)
    reader = SampleReader(dataset, recipe)
    for epoch in range(8):
        pixels, labels = np.empty((len(ids), SIZE, SIZE, 3), np.uint8), np.empty(len(ids), np.int64)
        reader.fill(ids, seed=2, epoch=epoch, pixels=pixels, labels=labels)
        crops = plan_crops(
            recipe,
            seed=2,
            epoch=epoch,
            sample_ids=ids,
            widths=records["width"].astype(np.int64),
            heights=records["height"].astype(np.int64),
        )
        for row, flip in enumerate(crops.flips.tolist()):
            name = dataset.describe(row).split("(")[1].split(")")[0]
            whole = decode((dataset.path.parent / "images" / name).read_bytes())
            x, y, w, h = crops.boxes[row].tolist()
            box = (x, y, x + w, y + h)
            shown = pixels[row][:, ::-1] if flip else pixels[row]
            if interpolation == "bilinear-no-antialias":
                assert np.abs(shown - nearest_two(whole, box)).max() < 0.5 + 1e-3, name
            else:
                method = Image.Resampling[interpolation.upper()]
                want = Image.fromarray(whole).resize((SIZE, SIZE), method, box=box)
                assert np.array_equal(shown, np.asarray(want)), (name, box)


@settings(max_examples=30)
@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    size=st.integers(8, 60),
    mirrored=st.booleans(),
)
def test_plain_bilinear_is_torchs_without_antialiasing(
    width: int, height: int, size: int, mirrored: bool
) -> None:
    rgbx = np.random.default_rng(width).integers(0, 256, (height, width, 4), np.uint8)
    levels = np.empty((size, size, 3), np.uint8)
    resize_plainly(
        rgbx.reshape(-1),
        4 * width,
        width,
        height,
        (0, 0, width, height),
        mirrored=mirrored,
        out=levels,
    )
    planes = torch.from_numpy(rgbx[..., :3].astype(np.float32)).permute(2, 0, 1)[None]
    expected = torch.nn.functional.interpolate(
        planes, size=(size, size), mode="bilinear", align_corners=False, antialias=False
    )[0].permute(1, 2, 0)
    shown = levels[:, ::-1] if mirrored else levels
    assert np.abs(shown - expected.numpy()).max() < 0.5 + 1e-2


@pytest.mark.parametrize(("position", "brightest"), [(35, 0), (37, 255)])
def test_small_details_stay_or_vanish(position: int, brightest: int) -> None:
    """Steps of 5 read only 2, 7, …, 37, …"""
    rgbx = np.zeros((80, 80, 4), np.uint8)
    rgbx[position, position] = 255
    levels = np.empty((16, 16, 3), np.uint8)
    resize_plainly(rgbx.reshape(-1), 320, 80, 80, (0, 0, 80, 80), mirrored=False, out=levels)
    assert levels.max() == brightest
