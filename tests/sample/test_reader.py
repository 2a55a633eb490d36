"""A sample's bytes are those of decoding the whole image and resizing the crop with Pillow."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from feeder.cli import main as cli
from feeder.dataset.opened import Dataset
from feeder.errors import DatasetError
from feeder.jpeg.crop_decode import McuGrids
from feeder.jpeg.scratch import Scratch
from feeder.plan.crop import plan_crops
from feeder.plan.recipe import MAX_IMAGE_SIZE, Recipe
from feeder.sample.reader import STAGES, SampleReader, plan_decode
from tests.support.jpegs import SAMPLINGS, class_files, decode, encode, picture

SIZES = [(224, 224), (31, 40), (500, 375), (375, 500), (900, 61), (640, 640), (1, 1), (449, 1100)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Every subsampling in every size, a class for each subsampling."""
    folder = tmp_path_factory.mktemp("sample")
    for kind in [*SAMPLINGS, "grey"]:
        (folder / "images" / kind.replace(":", "")).mkdir(parents=True)
        for width, height in SIZES:
            name = folder / "images" / kind.replace(":", "") / f"{width}x{height}.jpg"
            name.write_bytes(encode(picture(width, height), kind))
    assert cli.main(["pack", str(folder / "images"), str(folder / "packed"), "--jobs", "1"]) == 0
    return Dataset.open(folder / "packed")


def fill(
    dataset: Dataset, recipe: Recipe, ids: NDArray[np.int64], *, seed: int = 0, epoch: int = 0
) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    size = recipe.image_size
    pixels = np.full((len(ids), size, size, 3), 99, np.int8)
    labels = np.full(len(ids), -7, np.int64)
    SampleReader(dataset, recipe).fill(ids, seed=seed, epoch=epoch, pixels=pixels, labels=labels)
    return pixels, labels


def expected(
    whole: NDArray[np.uint8], box: tuple[float, ...], size: int, *, flip: bool, scale: int = 1
) -> NDArray[np.int8]:
    """Pillow's resize of the box of a full decode at 1/scale."""
    x, y, w, h = (side / scale for side in box)
    image = Image.fromarray(whole).resize(
        (size, size), Image.Resampling.BILINEAR, box=(x, y, x + w, y + h)
    )
    pixels = np.asarray(image).astype(int) - 128
    return (pixels[:, ::-1] if flip else pixels).astype(np.int8)


def source_of(dataset: Dataset, sample_id: int) -> str:
    return dataset.describe(sample_id).split("(")[1].split(")")[0]


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("dct_scaling", [False, True])
def test_every_kind_equals_full_decode_and_pillow(
    dataset: Dataset, split: str, dct_scaling: bool
) -> None:
    recipe = Recipe.for_split(split, batch_size=8, dct_scaling=dct_scaling, image_size=96)
    folder = dataset.path.parent / "images"
    ids = np.arange(dataset.layout.samples)
    scaled = 0
    for epoch in range(3):
        pixels, labels = fill(dataset, recipe, ids, seed=5, epoch=epoch)
        for row, sample_id in enumerate(ids.tolist()):
            name = source_of(dataset, sample_id)
            source = (folder / name).read_bytes()
            full = decode(source)
            crops = plan_crops(
                recipe,
                seed=5,
                epoch=epoch,
                sample_ids=ids[row : row + 1],
                widths=np.array([full.shape[1]]),
                heights=np.array([full.shape[0]]),
            )
            scale, flip = int(crops.scales[0]), bool(crops.flips[0])
            scaled += scale > 1
            whole = full if scale == 1 else decode(source, scale)
            want = expected(whole, crops.boxes[0].tolist(), 96, flip=flip, scale=scale)
            assert np.array_equal(pixels[row], want), (name, epoch, crops.boxes[0], scale)
            assert dataset.classes[labels[row]] == name.split("/")[0]
    assert (scaled > 0) == dct_scaling


def test_decoding_whole_images_gives_the_same_bytes(dataset: Dataset) -> None:
    """So the time that partial decoding saves can be measured: it changes nothing else."""
    recipe = Recipe.for_split("train", batch_size=8, image_size=96)
    ids = np.arange(dataset.layout.samples)
    whole, labels = fill(
        dataset, msgspec.structs.replace(recipe, partial_decode=False), ids, seed=3
    )
    pixels, expected_labels = fill(dataset, recipe, ids, seed=3)
    assert np.array_equal(whole, pixels)
    assert np.array_equal(labels, expected_labels)


def test_augmented_crops_are_mirrored_as_others_are(dataset: Dataset) -> None:
    recipe = Recipe.for_split("train", batch_size=8, image_size=96)
    ids = np.arange(dataset.layout.samples)
    plain, _ = fill(dataset, recipe, ids, seed=3)
    grey, _ = fill(dataset, msgspec.structs.replace(recipe, greyscale_probability=1.0), ids, seed=3)
    for row, pixels in enumerate(plain.astype(int) + 128):
        want = np.asarray(Image.fromarray(pixels.astype(np.uint8)).convert("L")).astype(int)
        assert np.array_equal(grey[row].astype(int) + 128, np.stack([want] * 3, 2))


def test_whole_images_are_planned_from_edge_to_edge(dataset: Dataset) -> None:
    grids = McuGrids.of_records(dataset.read_records(np.arange(dataset.layout.samples)))
    count = len(grids.width)
    boxes = np.tile([1.0, 1.0, 2.0, 2.0], (count, 1))
    plan = plan_decode(grids, boxes, np.ones(count, np.int64), 96, whole=True)
    assert np.array_equal(plan.windows.width, grids.width)
    assert np.array_equal(plan.windows.height, grids.height)
    assert np.array_equal(plan.boxes, np.tile([1.0, 1.0, 3.0, 3.0], (count, 1)))
    assert not plan.origins.any()


def test_every_real_image_equals_full_decode_and_pillow(
    imagenet_sample: Path, tmp_path: Path
) -> None:
    assert cli.main(["pack", str(imagenet_sample), str(tmp_path / "packed")]) == 0
    recipe = Recipe.for_split("train", batch_size=8, dct_scaling=False)
    with Dataset.open(tmp_path / "packed") as real:
        ids = np.arange(real.layout.samples)
        pixels, _ = fill(real, recipe, ids, seed=1)
        records = real.read_records(ids)
        crops = plan_crops(
            recipe,
            seed=1,
            epoch=0,
            sample_ids=ids,
            widths=records["width"].astype(np.int64),
            heights=records["height"].astype(np.int64),
        )
        sources = {f"{p.parent.name}/{p.name}": p for p in class_files(imagenet_sample)}
        for row in ids.tolist():
            whole = decode(sources[source_of(real, row)].read_bytes())
            box, flip = crops.boxes[row].tolist(), bool(crops.flips[row])
            assert np.array_equal(pixels[row], expected(whole, box, 224, flip=flip))


def test_centre_crop_equals_resizing_the_whole_image_first(dataset: Dataset) -> None:
    """torchvision's Resize(256) and CenterCrop(224); its box in source pixels rounds in float32."""
    recipe = Recipe.for_split("val", batch_size=8)
    ids = np.arange(dataset.layout.samples)
    pixels, _ = fill(dataset, recipe, ids)
    for row in ids.tolist():
        source = (dataset.path.parent / "images" / source_of(dataset, row)).read_bytes()
        image = Image.fromarray(decode(source))
        width, height = image.size
        short = min(width, height)
        resized = image.resize(
            (int(256 * width / short), int(256 * height / short)), Image.Resampling.BILINEAR
        )
        left = round((resized.width - 224) / 2)
        top = round((resized.height - 224) / 2)
        want = np.asarray(resized.crop((left, top, left + 224, top + 224))).astype(int) - 128
        difference = np.abs(pixels[row].astype(int) - want)
        assert difference.max() <= 1
        assert difference.mean() < 0.05


def test_bytes_do_not_depend_on_other_samples_order_or_history(dataset: Dataset) -> None:
    recipe = Recipe.for_split("train", batch_size=8, image_size=64)
    ids = np.arange(dataset.layout.samples)
    together, labels = fill(dataset, recipe, ids, seed=3, epoch=9)
    backwards, _ = fill(dataset, recipe, ids[::-1].copy(), seed=3, epoch=9)
    assert np.array_equal(together, backwards[::-1])
    for row in ids.tolist():
        alone, label = fill(dataset, recipe, ids[row : row + 1], seed=3, epoch=9)
        assert np.array_equal(alone[0], together[row])
        assert label[0] == labels[row]
    other, _ = fill(dataset, recipe, ids, seed=3, epoch=10)
    assert (other != together).any(axis=(1, 2, 3)).mean() > 0.75  # a 1 × 1 image has one crop


def test_a_damaged_sample_is_named(dataset: Dataset, tmp_path: Path) -> None:
    for path in dataset.path.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with Dataset.open(tmp_path) as copy:
        record = copy.read_records(np.array([3]))[0]
        name = copy.describe(3)
        shard = tmp_path / name.rsplit(" ", 1)[1]
        with shard.open("r+b") as file:
            file.seek(int(record["offset"]) + int(record["blob_bytes"]) // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(DatasetError, match=r"sample 3 .*feeder verify"):
            fill(copy, Recipe.for_split("train", batch_size=8), np.arange(5))


@pytest.mark.parametrize("brightness", [0.0, 0.4])
def test_stage_times_add_up_and_count(dataset: Dataset, brightness: float) -> None:
    recipe = Recipe.for_split("train", batch_size=8, image_size=64, brightness=brightness)
    reader = SampleReader(dataset, recipe)
    pixels, labels = np.empty((8, 64, 64, 3), np.int8), np.empty(8, np.int64)
    reader.fill(np.arange(8), seed=0, epoch=0, pixels=pixels, labels=labels)
    assert reader.images == 8
    assert set(reader.seconds) == set(STAGES)
    assert all(seconds > 0 for stage, seconds in reader.seconds.items() if stage != "augment")
    assert (reader.seconds["augment"] > 0) == (brightness > 0)


def test_scratch_is_reused_and_giant_buffers_are_freed() -> None:
    scratch = Scratch()
    first = scratch.take(1000)
    assert np.shares_memory(first, scratch.take(900_000))
    giant = scratch.take(100 << 20)
    assert giant.size == 100 << 20
    assert not np.shares_memory(giant, scratch.take(1000))


def test_the_largest_image_that_a_recipe_may_ask_for_is_made(dataset: Dataset) -> None:
    recipe = Recipe.for_split("train", batch_size=1, image_size=MAX_IMAGE_SIZE)
    pixels, _ = fill(dataset, recipe, np.array([0]))
    assert not (pixels == 99).all(axis=(1, 2, 3)).any()
