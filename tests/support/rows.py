"""Rows of batches, made by the sample path."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feeder.cli import main as cli
from feeder.plan.packing import pixel_layout_of
from feeder.sample.reader import SampleReader
from tests.support.jpegs import SAMPLINGS, encode, picture


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
    recipe = reader.recipe
    layout = pixel_layout_of(recipe.packing)
    pixels = np.full((len(ids), *layout.image_shape(recipe.image_size)), 99, layout.dtype)
    labels = np.full(len(ids), -7, np.int64)
    reader.fill(ids, seed=seed, epoch=epoch, pixels=pixels, labels=labels)
    return pixels, labels
