"""Decoding only a crop's tiles changes no byte: every filter, crop and scale, against Pillow."""

from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import feeder.sample.finish
import feeder.sample.reader
from feeder.cli import main as cli
from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import McuGrids
from feeder.jpeg.plain_bilinear import resize_plainly
from feeder.jpeg.resize import (
    FILTER_SUPPORT,
    SLACK_BYTES,
    VERSIONS,
    Filter,
    resize_pack,
    resize_pack_reference,
)
from feeder.plan.crop import CropPlan, plan_crops
from feeder.plan.recipe import Interpolation, Recipe
from feeder.sample.reader import SampleReader, plan_decode
from tests.jpeg.test_resize import rgbx
from tests.support.jpegs import SAMPLINGS, class_files, decode, encode, picture

SIZES = [(500, 375), (375, 500), (331, 97), (61, 480), (223, 224), (449, 701), (31, 40), (1, 1)]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
PLAIN = "bilinear-no-antialias"


class Images:
    """A packed folder, and its images decoded whole at any scale, for Pillow to resize."""

    def __init__(self, folder: Path, packed: Path) -> None:
        assert cli.main(["pack", str(folder), str(packed), "--jobs", "1"]) == 0
        self.dataset = Dataset.open(packed)
        self.ids = np.arange(self.dataset.layout.samples)
        self._records = self.dataset.read_records(self.ids)
        self._sources = {f"{path.parent.name}/{path.name}": path for path in class_files(folder)}
        self.decoded = cache(self._decode)

    def _decode(self, sample_id: int, scale: int) -> Image.Image:
        name = self.dataset.describe(sample_id).split("(")[1].split(")")[0]
        return Image.fromarray(decode(self._sources[name].read_bytes(), scale))

    def crops(self, recipe: Recipe, *, seed: int, epoch: int) -> CropPlan:
        return plan_crops(
            recipe,
            seed=seed,
            epoch=epoch,
            sample_ids=self.ids,
            widths=self._records["width"].astype(np.int64),
            heights=self._records["height"].astype(np.int64),
        )

    def fill(self, recipe: Recipe, *, seed: int, epoch: int) -> NDArray[np.uint8]:
        pixels = np.full((len(self.ids), recipe.image_size, recipe.image_size, 3), 99, np.uint8)
        labels = np.empty(len(self.ids), np.int64)
        reader = SampleReader(self.dataset, recipe)
        reader.fill(self.ids, seed=seed, epoch=epoch, pixels=pixels, labels=labels)
        return pixels

    def check(self, recipe: Recipe, *, seed: int, epoch: int) -> set[int]:
        """Compare decoding in parts with decoding whole and with Pillow; return the scales."""
        shown = self.fill(recipe, seed=seed, epoch=epoch)
        in_whole = msgspec.structs.replace(recipe, partial_decode=False)
        whole = self.fill(in_whole, seed=seed, epoch=epoch)
        crops = self.crops(recipe, seed=seed, epoch=epoch)
        for row, box in enumerate(crops.boxes.tolist()):
            scale = int(crops.scales[row])
            name = self.dataset.describe(row), box, scale
            assert np.array_equal(shown[row], whole[row]), name
            if recipe.interpolation != PLAIN:
                x, y, w, h = (side / scale for side in box)
                method = Image.Resampling[recipe.interpolation.upper()]
                size = (recipe.image_size, recipe.image_size)
                resized = self.decoded(row, scale).resize(size, method, box=(x, y, x + w, y + h))
                want = np.asarray(resized)
                assert np.array_equal(shown[row], want[:, ::-1] if crops.flips[row] else want), name
        return set(crops.scales.tolist())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """Every subsampling in every size."""
    folder = tmp_path_factory.mktemp("partial")
    for kind in [*SAMPLINGS, "grey"]:
        (folder / "images" / kind.replace(":", "")).mkdir(parents=True)
        for width, height in SIZES:
            name = folder / "images" / kind.replace(":", "") / f"{width}x{height}.jpg"
            name.write_bytes(encode(picture(width, height), kind))
    return Images(folder / "images", folder / "packed")


@pytest.fixture(scope="module")
def real_images(imagenet_sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Images:
    return Images(imagenet_sample, tmp_path_factory.mktemp("real") / "packed")


def recipe_of(split: str, interpolation: Interpolation, image_size: int, **fields: Any) -> Recipe:
    fields = {"dct_scaling": interpolation != PLAIN, "resize_size": 8 * image_size // 7} | fields
    return Recipe.for_split(
        split,  # type: ignore[arg-type]
        batch_size=8,
        image_size=image_size,
        interpolation=interpolation,
        packing="uint8-hwc-rgb",
        **fields,
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_every_filter_and_crop_at_every_scale_equals_pillow_on_the_whole_image(
    images: Images,
    interpolation: Interpolation,
    split: str,
    version: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (feeder.sample.reader, feeder.sample.finish):
        monkeypatch.setattr(module, "resize_pack", partial(resize_pack, version=version))
    scales: set[int] = set()
    for image_size in (24, 50, 113):
        recipe = recipe_of(split, interpolation, image_size)
        for epoch in range(3 if split == "train" else 1):
            scales |= images.check(recipe, seed=4, epoch=epoch)
    assert scales == ({1} if interpolation == PLAIN else {1, 2, 4, 8})


@settings(max_examples=40)
@given(
    split=st.sampled_from(["train", "val"]),
    interpolation=st.sampled_from(["box", "box", *INTERPOLATIONS]),
    image_size=st.integers(8, 224),
    resize_size=st.integers(8, 300),
    largest=st.floats(0.1, 1.0),
    scaling=st.booleans(),
    augmented=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 99),
)
def test_any_recipe_equals_pillow_on_the_whole_image(
    images: Images,
    split: str,
    interpolation: Interpolation,
    image_size: int,
    resize_size: int,
    largest: float,
    scaling: bool,
    augmented: bool,
    seed: int,
    epoch: int,
) -> None:
    recipe = recipe_of(
        split,
        interpolation,
        image_size,
        resize_size=max(image_size, resize_size),
        scale=(0.08, largest),
        dct_scaling=scaling and interpolation != PLAIN,
        # So rare that rows take the path of augmented ones but stay comparable.
        **({"erasing_probability": 1e-9} if augmented else {}),
    )
    images.check(recipe, seed=seed, epoch=epoch)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_every_real_image_equals_pillow_on_the_whole_image(
    real_images: Images, interpolation: Interpolation
) -> None:
    for split, image_size in (("train", 224), ("val", 224), ("train", 48)):
        real_images.check(recipe_of(split, interpolation, image_size), seed=1, epoch=0)


@st.composite
def boxes_within(draw: st.DrawFn, side: int, steps: int) -> tuple[float, float]:
    """Draw where a box begins and how long it is, in ``steps`` parts of a pixel."""
    start = draw(st.integers(0, side * steps - 1))
    return start / steps, draw(st.integers(1, side * steps - start)) / steps


@settings(max_examples=1500)
@given(
    interpolation=st.sampled_from(["box", *INTERPOLATIONS]),
    width=st.integers(1, 260),
    height=st.integers(1, 90),
    size=st.integers(1, 64),
    mirrored=st.booleans(),
    data=st.data(),
)
def test_window_gives_the_same_pixels_as_the_whole_picture(
    interpolation: Interpolation, width: int, height: int, size: int, mirrored: bool, data: Any
) -> None:
    """The window is the planned one; the pixels around it are absent."""
    steps = data.draw(st.sampled_from([1, 3, 7, size, 256]), "parts of a pixel")
    left, box_width = data.draw(boxes_within(width, steps), "across")
    top, box_height = data.draw(boxes_within(height, steps), "down")
    filters: dict[str, Filter] = {"bilinear": "bilinear", "bicubic": "bicubic", "box": "box"}
    support = FILTER_SUPPORT[filters.get(interpolation, "bilinear")]
    plan = plan_decode(
        grid_of_mcus(width, height, 8),
        np.array([[left, top, box_width, box_height]]),
        np.ones(1, np.int64),
        size,
        max(1.0, support),
    )
    whole = rgbx(width, height, 4 * width, data.draw(st.integers(0, 2**32), "pixels"))
    (x, y), box = plan.origins[0].tolist(), plan.boxes[0].tolist()
    shown = (int(plan.windows.width[0]), int(plan.windows.height[0]))
    window = np.full(4 * shown[0] * shown[1] + SLACK_BYTES, 200, np.uint8)
    pixels = whole[: 4 * width * height].reshape(height, width, 4)
    window[:-SLACK_BYTES] = pixels[y : y + shown[1], x : x + shown[0]].reshape(-1)

    expected, out = (np.empty((size, size, 3), np.uint8) for _ in range(2))
    if interpolation == PLAIN:
        for out_of, origin, picture_of, sides in (
            (expected, (0, 0), whole, (width, height)),
            (out, (x, y), window, shown),
        ):
            resize_plainly(
                picture_of, 4 * sides[0], *sides, box, origin=origin, mirrored=mirrored, out=out_of
            )
        assert np.array_equal(out, expected)
        return
    options: dict[str, Any] = {"mirrored": mirrored, "resampling": filters[interpolation]}
    resize_pack_reference(whole, 4 * width, width, height, box, out=expected, **options)
    for version in VERSIONS:
        options["version"] = version
        resize_pack(window, 4 * shown[0], *shown, box, origin=(x, y), out=out, **options)
        assert np.array_equal(out, expected), version


def grid_of_mcus(width: int, height: int, side: int) -> McuGrids:
    """Return the geometry of one image without subsampled chroma, of MCUs of ``side`` pixels."""
    return McuGrids(
        width=np.array([width]),
        height=np.array([height]),
        mcu_width_px=np.array([side]),
        mcu_height_px=np.array([side]),
        chroma_reach_px=np.array([0]),
    )
