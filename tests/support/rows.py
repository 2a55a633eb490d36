"""Rows of batches, made by the sample path, and what Pillow makes of the same crops."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.cli import main as cli
from feeder.dataset.opened import Dataset
from feeder.plan.crop import plan_crops
from feeder.plan.packing import pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from tests.support.jpegs import SAMPLINGS, class_files, decode, encode, picture


def pack_folder(source: Path, packed: Path) -> Path:
    assert cli.main(["pack", str(source), str(packed), "--jobs", "1"]) == 0
    return packed


def pack_every_kind(folder: Path, sizes: list[tuple[int, int]]) -> Path:
    """Pack images of every subsampling in every size, a class for each subsampling."""
    for kind in [*SAMPLINGS, "grey"]:
        of_kind = folder / "images" / kind.replace(":", "")
        of_kind.mkdir(parents=True)
        for width, height in sizes:
            (of_kind / f"{width}x{height}.jpg").write_bytes(encode(picture(width, height), kind))
    return pack_folder(folder / "images", folder / "packed")


def make_rows(
    reader: SampleReader, ids: NDArray[np.int64], *, seed: int = 0, epoch: int = 0
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the pixels, in the recipe's packing, and the labels."""
    recipe = reader._recipe
    layout = pixel_layout_of(recipe.packing)
    pixels = np.full((len(ids), *layout.image_shape(recipe.image_size)), 99, layout.dtype)
    labels = np.full(len(ids), -7, np.int64)
    reader.fill(ids, seed=seed, epoch=epoch, pixels=pixels, labels=labels)
    return pixels, labels


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
