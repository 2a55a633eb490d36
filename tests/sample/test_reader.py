"""A sample's bytes are those of decoding the whole image and resizing the crop with Pillow."""

from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import McuGrids
from feeder.jpeg.decode import VERSIONS as DECODE_VERSIONS
from feeder.jpeg.plain_bilinear import resize_plainly
from feeder.jpeg.resize import (
    FILTER_SUPPORT,
    SLACK_BYTES,
    VERSIONS,
    Filter,
    resize_pack,
    resize_pack_reference,
)
from feeder.plan.batch_shape import MAX_IMAGE_SIZE
from feeder.plan.crop import plan_crops
from feeder.plan.recipe import Interpolation, Recipe
from feeder.sample.decode_plan import plan_decode
from feeder.sample.reader import STAGES, SampleReader
from tests.jpeg.test_resize import rgbx
from tests.support.jpegs import class_files, decode
from tests.support.rows import make_rows, pack_every_kind, pack_folder

SIZES = [(500, 375), (375, 500), (61, 480), (900, 61), (224, 223), (449, 701), (31, 40), (1, 1)]
INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
PLAIN = "bilinear-no-antialias"


class PillowRows:
    """A folder and its dataset: the rows are compared with Pillow's, of images decoded whole."""

    def __init__(self, folder: Path, packed: Path) -> None:
        self.dataset = Dataset.open(packed)
        self.ids = np.arange(self.dataset.layout.samples)
        self._records = self.dataset.read_records(self.ids)
        self._sources = {f"{path.parent.name}/{path.name}": path for path in class_files(folder)}
        self.decoded = cache(self._decode)

    def name_of(self, sample_id: int) -> str:
        """Return class and file name of a sample's source."""
        return str(self.dataset.name_of(sample_id))

    def _decode(self, sample_id: int, scale: int) -> Image.Image:
        return Image.fromarray(decode(self._sources[self.name_of(sample_id)].read_bytes(), scale))

    def check(
        self, recipe: Recipe, *, seed: int, epoch: int, every: int = 1, **options: Any
    ) -> set[int]:
        """Check every so many rows of a recipe with packing uint8-hwc-rgb; return the scales."""
        ids = self.ids[::every].copy()
        reader = SampleReader(self.dataset, recipe, **options)
        rows, labels = make_rows(reader, ids, seed=seed, epoch=epoch)
        crops = plan_crops(
            recipe,
            seed=seed,
            epoch=epoch,
            sample_ids=ids,
            widths=self._records["width"][ids],
            heights=self._records["height"][ids],
        )
        for at, sample_id in enumerate(ids.tolist()):
            scale, name = int(crops.scales[at]), self.name_of(sample_id)
            x, y, w, h = (crops.boxes[at] / scale).tolist()
            shown = rows[at, :, ::-1] if crops.flips[at] else rows[at]
            whole, box = self.decoded(sample_id, scale), (x, y, x + w, y + h)
            if recipe.interpolation == "bilinear-no-antialias":
                want = nearest_two(np.asarray(whole), box, recipe.image_size)
                assert np.abs(shown - want).max() < 0.5 + 1e-3, (name, box)
            else:
                method = Image.Resampling[recipe.interpolation.upper()]
                pillow = whole.resize((recipe.image_size,) * 2, method, box=box)
                assert np.array_equal(shown, np.asarray(pillow)), (name, box, scale)
            assert self.dataset.classes[labels[at]] == name.split("/")[0]
        return set(crops.scales.tolist())


def nearest_two(
    levels: NDArray[np.uint8], box: tuple[float, float, float, float], size: int
) -> NDArray[np.float64]:
    """Bilinear without antialiasing of a box (left, top, right, bottom), in float64, unrounded."""
    left, top, right, bottom = np.float32(box).astype(float)  # as resizing takes it
    shown = levels.astype(float)
    for axis, start, end in ((0, top, bottom), (1, left, right)):
        last = shown.shape[axis] - 1
        at = np.clip(start + (np.arange(size) + 0.5) * (end - start) / size - 0.5, 0, last)
        low = np.floor(at).astype(int)
        share = (at - low).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        high = shown.take(np.minimum(low + 1, last), axis)
        shown = shown.take(low, axis) * (1 - share) + high * share
    return shown


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> PillowRows:
    folder = tmp_path_factory.mktemp("sample")
    return PillowRows(folder / "images", pack_every_kind(folder, SIZES))


@pytest.fixture(scope="module")
def real_images(imagenet_sample: Path, tmp_path_factory: pytest.TempPathFactory) -> PillowRows:
    packed = tmp_path_factory.mktemp("real") / "packed"
    return PillowRows(imagenet_sample, pack_folder(imagenet_sample, packed))


def recipe_of(split: str, interpolation: str, image_size: int, **fields: Any) -> Recipe:
    defaults = {"dct_scaling": interpolation != PLAIN, "resize_size": 8 * image_size // 7}
    return Recipe.for_split(
        split,  # type: ignore[arg-type]
        **{
            "batch_size": 8,
            "image_size": image_size,
            "interpolation": interpolation,
            "packing": "uint8-hwc-rgb",
            **defaults,
            **fields,
        },
    )


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_every_filter_and_crop_at_every_scale_equals_pillow_on_the_whole_image(
    images: PillowRows, interpolation: Interpolation, split: str
) -> None:
    scales: set[int] = set()
    for image_size in (24, 50) if interpolation == PLAIN else (24, 50, 113):
        recipe = recipe_of(split, interpolation, image_size)
        for epoch, version in enumerate(DECODE_VERSIONS):
            scales |= images.check(recipe, seed=4, epoch=epoch, vectors=version)
    assert scales == ({1} if interpolation == PLAIN else {1, 2, 4, 8})


@settings(max_examples=25)
@given(
    split=st.sampled_from(["train", "val"]),
    interpolation=st.sampled_from(["box", "box", *INTERPOLATIONS]),
    image_size=st.integers(8, 224),
    resize_size=st.integers(8, 300),
    largest=st.floats(0.1, 1.0),
    scaling=st.booleans(),
    flips=st.sampled_from([0, 0.5, 1]),
    augmented=st.booleans(),
    decoder=st.sampled_from(["own", "turbojpeg"]),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 99),
)
def test_any_recipe_equals_pillow_on_the_whole_image(
    images: PillowRows,
    split: str,
    interpolation: Interpolation,
    image_size: int,
    resize_size: int,
    largest: float,
    scaling: bool,
    flips: float,
    augmented: bool,
    decoder: str,
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
        flip_probability=flips,
        # So rare that rows take the path of augmented ones but stay comparable.
        **({"erasing_probability": 1e-9} if augmented else {}),
    )
    images.check(recipe, seed=seed, epoch=epoch, decoder=decoder)


@pytest.mark.parametrize(
    ("interpolation", "split", "image_size"),
    [("bilinear", "train", 224), ("bicubic", "val", 224), ("box", "train", 48)],
)
def test_real_images_equal_pillow_on_the_whole_image(
    real_images: PillowRows, interpolation: str, split: str, image_size: int
) -> None:
    every = 1 if interpolation == "bilinear" else 3
    real_images.check(recipe_of(split, interpolation, image_size), seed=1, epoch=0, every=every)


def test_centre_crop_equals_resizing_the_whole_image_first(images: PillowRows) -> None:
    """torchvision's Resize(256) and CenterCrop(224); its box in source pixels rounds in float32."""
    reader = SampleReader(images.dataset, Recipe.for_split("val", batch_size=8))
    pixels, _ = make_rows(reader, images.ids)
    for row in images.ids.tolist():
        image = images.decoded(row, 1)
        size = tuple(int(256 * side / min(image.size)) for side in image.size)
        left, top = (round((side - 224) / 2) for side in size)
        resized = image.resize(size, Image.Resampling.BILINEAR)
        want = np.asarray(resized.crop((left, top, left + 224, top + 224))).astype(int) - 128
        difference = np.abs(pixels[row] - want)
        assert difference.max() <= 1
        assert difference.mean() < 0.05


def test_partial_decoding_saves_pixels_and_changes_none(images: PillowRows) -> None:
    recipe = recipe_of("train", "bilinear", 96, dct_scaling=False)
    in_whole = msgspec.structs.replace(recipe, partial_decode=False)
    readers = [SampleReader(images.dataset, each) for each in (recipe, in_whole)]
    rows, whole_rows = (make_rows(reader, images.ids, seed=3) for reader in readers)
    assert all(np.array_equal(*pair) for pair in zip(rows, whole_rows, strict=True))
    records = images.dataset.read_records(images.ids)
    whole_px = int((records["width"].astype(int) * records["height"]).sum())
    assert readers[1].decoded_bytes >= 4 * whole_px > 1.3 * readers[0].decoded_bytes


def test_bytes_do_not_depend_on_other_samples_order_or_history(images: PillowRows) -> None:
    recipe = Recipe.for_split("train", batch_size=8, image_size=64)
    reader, ids = SampleReader(images.dataset, recipe), images.ids
    together, labels = make_rows(reader, ids, seed=3, epoch=9)
    backwards, _ = make_rows(reader, ids[::-1].copy(), seed=3, epoch=9)
    assert np.array_equal(together, backwards[::-1])
    for row in ids.tolist():
        alone, label = make_rows(reader, ids[row : row + 1], seed=3, epoch=9)
        assert np.array_equal(alone[0], together[row])
        assert label[0] == labels[row]
    other, _ = make_rows(reader, ids, seed=3, epoch=10)
    assert (other != together).any(axis=(1, 2, 3)).mean() > 0.75  # a 1 × 1 image has one crop


@st.composite
def boxes_within(draw: st.DrawFn, side: int, steps: int) -> tuple[float, float]:
    """Draw where a box begins and how long it is, in ``steps`` parts of a pixel."""
    start = draw(st.integers(0, side * steps - 1))
    return start / steps, draw(st.integers(1, side * steps - start)) / steps


@settings(max_examples=250)
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
    resampling: Filter = "bilinear" if interpolation == PLAIN else interpolation
    sides = {"width": width, "height": height, "mcu_width_px": 8, "mcu_height_px": 8}
    plan = plan_decode(
        McuGrids(**{name: np.array([n]) for name, n in (sides | {"chroma_reach_px": 0}).items()}),
        np.array([[left, top, box_width, box_height]]),
        np.ones(1, np.int64),
        size,
        max(1.0, FILTER_SUPPORT[resampling]),
    )
    whole = rgbx(4 * width * height + SLACK_BYTES, data.draw(st.integers(0, 2**32), "pixels"))
    x, y, box = int(plan.windows.x[0]), int(plan.windows.y[0]), plan.boxes[0].tolist()
    shown = (int(plan.windows.width[0]), int(plan.windows.height[0]))
    window = np.full(4 * shown[0] * shown[1] + SLACK_BYTES, 200, np.uint8)
    pixels = whole[: 4 * width * height].reshape(height, width, 4)
    window[:-SLACK_BYTES] = pixels[y : y + shown[1], x : x + shown[0]].reshape(-1)

    expected, out = (np.empty((size, size, 3), np.uint8) for _ in range(2))
    of_whole, of_window = (
        (whole, 4 * width, width, height, box),
        (window, 4 * shown[0], *shown, box),
    )
    if interpolation == PLAIN:
        resize_plainly(*of_whole, origin=(0, 0), mirrored=mirrored, out=expected)
        resize_plainly(*of_window, origin=(x, y), mirrored=mirrored, out=out)
        assert np.array_equal(out, expected)
        return
    options: dict[str, Any] = {"mirrored": mirrored, "resampling": resampling}
    resize_pack_reference(*of_whole, out=expected, **options)
    for version in VERSIONS:
        resize_pack(*of_window, origin=(x, y), out=out, version=version, **options)
        assert np.array_equal(out, expected), version


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
    import torch  # here: it takes long

    flat = np.random.default_rng(width).integers(0, 256, (height, width, 4), np.uint8)
    levels, box = np.empty((size, size, 3), np.uint8), (0, 0, width, height)
    resize_plainly(flat.reshape(-1), 4 * width, width, height, box, mirrored=mirrored, out=levels)
    planes = torch.from_numpy(flat[..., :3].astype(np.float32)).permute(2, 0, 1)[None]
    expected = torch.nn.functional.interpolate(
        planes, size=(size, size), mode="bilinear", align_corners=False, antialias=False
    )[0].permute(1, 2, 0)
    shown = levels[:, ::-1] if mirrored else levels
    assert np.abs(shown - expected.numpy()).max() < 0.5 + 1e-2


@pytest.mark.parametrize("brightness", [0.0, 0.4])
def test_stage_times_add_up_and_count(images: PillowRows, brightness: float) -> None:
    recipe = Recipe.for_split("train", batch_size=8, image_size=64, brightness=brightness)
    reader = SampleReader(images.dataset, recipe)
    make_rows(reader, np.arange(8))
    assert reader.images == 8
    assert set(reader.seconds) == set(STAGES)
    assert all(seconds > 0 for stage, seconds in reader.seconds.items() if stage != "augment")
    assert (reader.seconds["augment"] > 0) == (brightness > 0)


def test_the_largest_image_that_a_recipe_may_ask_for_is_made(images: PillowRows) -> None:
    recipe = Recipe.for_split("train", batch_size=1, image_size=MAX_IMAGE_SIZE)
    pixels, _ = make_rows(SampleReader(images.dataset, recipe), np.array([0]))
    assert not (pixels == 99).all(axis=(1, 2, 3)).any()
